import type { DiffItem } from "../../../client/types.ts";
import type { Slicer } from "../../data/slicer.ts";
import { type EncodedPath, pathFrom, ROOT, stepsTo } from "../paths.ts";

export interface ChangeCounts {
  added: number;
  changed: number;
  removed: number;
}

/** A path that differs, or a directory above one. */
export interface ChangeNode {
  readonly path: EncodedPath;
  /** null: the directory itself is the same in both images */
  item: DiffItem | null;
  readonly children: ChangeNode[];
  /** differences at it and below it */
  readonly counts: ChangeCounts;
}

/** Items between two looks at the clock. */
const STEP_COUNT = 512;

/** Differences as a tree of directories. @param items in the order of the API: directories before their entries */
export async function changeTree(items: readonly DiffItem[], slicer: Slicer): Promise<ChangeNode> {
  const root: ChangeNode = nodeAt(ROOT);
  const nodes = new Map<EncodedPath, ChangeNode>([[ROOT, root]]);
  for (const [index, item] of items.entries()) {
    if (index % STEP_COUNT === 0) await slicer.rest();
    const path = pathFrom(item);
    let above = root;
    for (const step of stepsTo(path)) {
      let node = nodes.get(step);
      if (node === undefined) {
        node = nodeAt(step);
        nodes.set(step, node);
        above.children.push(node);
      }
      node.counts[item.change] += 1;
      above = node;
    }
    above.item = item;
  }
  return root;
}

function nodeAt(path: EncodedPath): ChangeNode {
  return { path, item: null, children: [], counts: { added: 0, changed: 0, removed: 0 } };
}

export interface ChangeRow {
  readonly node: ChangeNode;
  readonly depth: number;
  /** directories above the node in the same row: they have no other difference */
  readonly above: readonly ChangeNode[];
}

/** The rows of a tree of which some directories are open. The root is a row only if it differs itself. */
export function rowsOf(root: ChangeNode, isOpen: (path: EncodedPath) => boolean): ChangeRow[] {
  const rows: ChangeRow[] = root.item === null ? [] : [{ node: root, depth: 0, above: [] }];
  const waiting = root.children.map((node) => ({ node, depth: 0 })).reverse();
  for (let step = waiting.pop(); step !== undefined; step = waiting.pop()) {
    const above: ChangeNode[] = [];
    let { node } = step;
    for (let only = onlyDirectory(node); only !== null; only = onlyDirectory(node)) {
      above.push(node);
      node = only;
    }
    rows.push({ node, depth: step.depth, above });
    if (!isOpen(node.path)) continue;
    for (const child of node.children.toReversed()) waiting.push({ node: child, depth: step.depth + 1 });
  }
  return rows;
}

/** The only directory with differences in an unchanged one. */
function onlyDirectory({ item, children }: ChangeNode): ChangeNode | null {
  const [child] = children;
  return item === null && children.length === 1 && child !== undefined && child.children.length > 0 ? child : null;
}

/** The initially open directories: as many levels as fit into the given number of rows. */
export function firstOpen(root: ChangeNode, rowsMax: number): Set<EncodedPath> {
  const open = new Set<EncodedPath>();
  let level = [...root.children];
  let count = level.length;
  while (level.length > 0) {
    const parents = level.filter((node) => node.children.length > 0);
    const next = parents.flatMap(({ children }) => children);
    count += next.length;
    if (count > rowsMax) break;
    for (const { path } of parents) open.add(path);
    level = next;
  }
  return open;
}
