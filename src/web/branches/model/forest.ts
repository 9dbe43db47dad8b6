import type { OperationKind } from "../../../domain/operation.ts";

/** An image of the forest, as the appliance sends it. */
export interface ImageRow {
  readonly id: string;
  /** nearest ancestor that exists; null for one that was imported */
  readonly parentId: string | null;
  /** deleted images between the two */
  readonly skipped: number;
  readonly tag: string | null;
  /** `milliseconds` since 1970 */
  readonly createdAt: number;
  readonly origin: OperationKind;
  /** beginning of the command, or of the imported reference; null if unknown */
  readonly command: string | null;
  /** null for an import, and for a checkpoint */
  readonly exitCode: number | null;
  readonly timedOut: boolean;
  /** `bytes` that the image adds to its parent */
  readonly addedBytes: number;
  /** of the operation that made it */
  readonly operation: string;
}

export type RunState = "waiting" | "running" | "ended" | "failed" | "cancelled";

/** An operation that has not ended, or has ended without an image and fades. */
export interface RunRow {
  /** of the operation */
  readonly id: string;
  /** its image; null for an import */
  readonly imageId: string | null;
  readonly origin: OperationKind;
  readonly state: RunState;
  /** beginning of the command, or of the imported reference; null if unknown */
  readonly command: string | null;
  /** time of the request or of the start, in `milliseconds` since 1970 */
  readonly since: number;
}

export interface ImageNode extends Omit<ImageRow, "parentId" | "tag" | "skipped"> {
  tag: string | null;
  skipped: number;
  parent: ImageNode | null;
  /** the oldest first */
  readonly children: ImageNode[];
  /** operations that run on it, the oldest first */
  readonly runs: RunRow[];
  /** number of its descendants; counted by `Forest.measure` */
  below: number;
  /** number of matches among them; counted by `Forest.measure` */
  hitsBelow: number;
  /** time of the newest image among it and its descendants, in `milliseconds` since 1970; counted by `Forest.measure` */
  latest: number;
  /** order of roots, the largest first: `latest` of when all images had come, so that roots do not change their places */
  rank: number;
  /** the image itself matches the search; set by `Forest.measure` */
  isHit: boolean;
}

/** Inserts into a list in order of time, the oldest first; nearly always at its end. */
function insertByTime(list: ImageNode[], node: ImageNode): void {
  let index = list.length;
  while (index > 0 && isOlder(node, list[index - 1])) index--;
  list.splice(index, 0, node);
}

function insertRun(list: RunRow[], run: RunRow): void {
  const after = list.findIndex(({ since }) => since > run.since);
  list.splice(after < 0 ? list.length : after, 0, run);
}

function isOlder(node: ImageNode, other: ImageNode | undefined): boolean {
  if (other === undefined) return false;
  return node.createdAt === other.createdAt ? node.id < other.id : node.createdAt < other.createdAt;
}

function take<Entry>(list: Entry[], entry: Entry): void {
  const index = list.indexOf(entry);
  if (index >= 0) list.splice(index, 1);
}

/** The images of an account as trees, with the operations on them. Rows may arrive in any order. */
export class Forest {
  readonly images = new Map<string, ImageNode>();
  /** images without a parent, the oldest first */
  readonly roots: ImageNode[] = [];
  readonly runs = new Map<string, RunRow>();
  /** operations without a known image, mostly imports; the oldest first */
  readonly rootRuns: RunRow[] = [];
  /** images whose parent has not arrived yet, by its id */
  readonly #awaiting = new Map<string, ImageNode[]>();
  readonly #byTag = new Map<string, ImageNode>();
  /** parents of deleted images: rows from before a deletion may arrive after it */
  readonly #gone = new Map<string, string | null>();

  /** Adds or updates an image, unless it is deleted. */
  add(latest: ImageRow): void {
    if (this.#gone.has(latest.id)) return;
    const row = this.#withoutGone(latest);
    const existing = this.images.get(row.id);
    if (existing !== undefined) {
      this.tag(row.id, row.tag);
      const parent = row.parentId === null ? null : this.images.get(row.parentId);
      if (parent === undefined || parent === existing.parent) return;
      existing.skipped = row.skipped;
      this.#move(existing, parent);
      return;
    }
    const { parentId, tag, ...rest } = row;
    const node: ImageNode = {
      ...rest,
      tag: null,
      parent: null,
      children: [],
      runs: [],
      ...UNMEASURED,
      rank: row.createdAt,
    };
    this.images.set(row.id, node);
    this.#attach(node, parentId === null ? null : (this.images.get(parentId) ?? null));
    if (parentId !== null && node.parent === null) this.#await(parentId, node);
    for (const child of this.#awaiting.get(row.id) ?? []) {
      if (child.parent === null && this.images.get(child.id) === child) this.#move(child, node);
    }
    this.#awaiting.delete(row.id);
    // Images and runs that arrived before this image, and the run that created it.
    for (const run of [...this.rootRuns]) if (run.imageId === row.id) this.setRun(run);
    this.dropRun(row.operation);
    if (tag !== null) this.tag(row.id, tag);
  }

  /** A row whose parent is the nearest ancestor that is not deleted. */
  #withoutGone(row: ImageRow): ImageRow {
    let { parentId, skipped } = row;
    while (parentId !== null && this.#gone.has(parentId)) {
      parentId = this.#gone.get(parentId) ?? null;
      skipped++;
    }
    return { ...row, parentId, skipped };
  }

  /** Moves a tag to an image, from any other image; null removes its tag. */
  tag(id: string, tag: string | null): void {
    const node = this.images.get(id);
    if (node === undefined || node.tag === tag) return;
    if (node.tag !== null) this.#byTag.delete(node.tag);
    if (tag !== null) {
      const last = this.#byTag.get(tag);
      if (last !== undefined) last.tag = null;
      this.#byTag.set(tag, node);
    }
    node.tag = tag;
  }

  /** Removes an image. Its children become children of its parent, as in the appliance. */
  remove(id: string): void {
    const node = this.images.get(id);
    this.#gone.set(id, node?.parent?.id ?? null);
    if (node === undefined) return;
    this.tag(id, null);
    this.images.delete(id);
    take(node.parent?.children ?? this.roots, node);
    for (const child of node.children) {
      child.skipped += node.skipped + 1;
      this.#attach(child, node.parent);
    }
    for (const run of node.runs) insertRun(this.rootRuns, run);
  }

  /** Adds or updates a run. */
  setRun(run: RunRow): void {
    this.dropRun(run.id);
    this.runs.set(run.id, run);
    insertRun(this.#runsBeside(run), run);
  }

  dropRun(id: string): void {
    const run = this.runs.get(id);
    if (run === undefined) return;
    this.runs.delete(id);
    take(this.#runsBeside(run), run);
    take(this.rootRuns, run);
  }

  /** The image that has a tag. */
  tagged(tag: string): ImageNode | null {
    return this.#byTag.get(tag) ?? null;
  }

  /** Counts the descendants of each image, in slices. @param isHit whether an image matches the search; null: no search */
  *measure(isHit: ((node: ImageNode) => boolean) | null): Generator<void, void> {
    const parentsFirst: ImageNode[] = [...this.roots];
    for (let index = 0; index < parentsFirst.length; index++) {
      const node = parentsFirst[index] as ImageNode;
      node.below = 0;
      node.hitsBelow = 0;
      node.latest = node.createdAt;
      node.isHit = isHit?.(node) ?? false;
      for (const child of node.children) parentsFirst.push(child);
      if (index % PIECE === 0) yield;
    }
    for (let index = parentsFirst.length - 1; index >= 0; index--) {
      const { parent, below, hitsBelow, latest, isHit: hit } = parentsFirst[index] as ImageNode;
      if (index % PIECE === 0) yield;
      if (parent === null) continue;
      parent.below += below + 1;
      parent.latest = Math.max(parent.latest, latest);
      parent.hitsBelow += hitsBelow + (hit ? 1 : 0);
    }
  }

  #runsBeside({ imageId }: RunRow): RunRow[] {
    return (imageId === null ? null : this.images.get(imageId)?.runs) ?? this.rootRuns;
  }

  #attach(node: ImageNode, parent: ImageNode | null): void {
    node.parent = parent;
    insertByTime(parent?.children ?? this.roots, node);
  }

  #move(node: ImageNode, parent: ImageNode | null): void {
    take(node.parent?.children ?? this.roots, node);
    this.#attach(node, parent);
  }

  #await(parentId: string, node: ImageNode): void {
    const waiting = this.#awaiting.get(parentId);
    if (waiting === undefined) this.#awaiting.set(parentId, [node]);
    else waiting.push(node);
  }
}

/** Images per slice. */
const PIECE = 512;
const UNMEASURED = { below: 0, hitsBelow: 0, latest: 0, isHit: false };

/** The image and its ancestors, the image itself first. */
export function* lineageOf(image: ImageNode | null): Generator<ImageNode> {
  for (let node = image; node !== null; node = node.parent) yield node;
}

/** The `count` newest images. */
export function newestOf(images: Iterable<ImageNode>, count: number): ImageNode[] {
  return [...images].sort((one, other) => other.createdAt - one.createdAt).slice(0, count);
}
