import type { Model, Node } from "./model.ts";

/** An entry in one of the views; strings are byte strings. */
export interface Seen {
  readonly type: string;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly size: number;
  /** `nanoseconds` */
  readonly mtime: bigint;
  readonly nlink: number;
  /** the same for all names of an inode */
  readonly identity: unknown;
  readonly rdev: string;
  readonly target: string;
  readonly digest: string;
  readonly xattrs: ReadonlyMap<string, string>;
}

export type View = ReadonlyMap<string, Seen>;

/** Largest difference between the clocks of guest and host, in `nanoseconds`. */
const CLOCK_NS = 5_000_000_000n;

/** One line per path, in which all views must agree. Sizes and links of directories mean nothing in an overlay. */
export function linesOf(view: View): Map<string, string> {
  const groups = new Map<unknown, string>();
  const paths = [...view.keys()].sort();
  for (const path of paths) {
    const { identity } = view.get(path) as Seen;
    if (!groups.has(identity)) groups.set(identity, path);
  }
  return new Map(paths.map((path) => [path, lineOf(view.get(path) as Seen, groups)]));
}

function lineOf(seen: Seen, groups: ReadonlyMap<unknown, string>): string {
  const xattrs = [...seen.xattrs].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, value]) => `${name}=${value}`);
  return JSON.stringify({
    type: seen.type,
    mode: seen.mode.toString(8),
    owner: `${seen.uid}:${seen.gid}`,
    mtime: String(seen.mtime),
    ...(seen.type === "d" ? {} : { nlink: seen.nlink, links: seen.nlink > 1 ? groups.get(seen.identity) : "" }),
    ...(seen.type === "f" ? { size: seen.size, digest: seen.digest } : {}),
    ...(seen.type === "l" ? { target: seen.target } : {}),
    ...(seen.type === "b" || seen.type === "c" ? { rdev: seen.rdev } : {}),
    ...(xattrs.length > 0 ? { xattrs } : {}),
  });
}

/** The first differences between two views, as text; empty without differences. */
export function differences(expected: View, actual: View, countMax = 10): string[] {
  const [left, right] = [linesOf(expected), linesOf(actual)];
  const texts: string[] = [];
  for (const path of new Set([...left.keys(), ...right.keys()])) {
    if (texts.length === countMax) break;
    const [a, b] = [left.get(path) ?? "nothing", right.get(path) ?? "nothing"];
    if (a !== b) texts.push(`${JSON.stringify(path)}\n  expected ${a}\n  actual   ${b}`);
  }
  return texts;
}

/** The model as a view, once it has the clock's times: see `adoptTimes`. */
export function viewOfModel(model: Model): View {
  const counts = model.nameCounts();
  const seen = new Map<string, Seen>();
  for (const [path, node] of model.entries()) seen.set(path, seenOf(node, counts.get(node) ?? 1));
  return seen;
}

function seenOf(node: Node, nameCount: number): Seen {
  return {
    ...{ type: node.type, mode: node.mode, uid: node.uid, gid: node.gid, rdev: node.rdev, target: node.target },
    ...{ size: node.content.size, digest: node.type === "f" ? node.content.digest : "" },
    mtime: node.mtime ?? 0n,
    nlink: node.upper ? nameCount : node.nlink,
    identity: node,
    xattrs: node.xattrs,
  };
}

/**
 * Sets the times of the model to those of the kernel's clock, as the run saw them; returns those that the clock cannot
 * have set.
 */
export function adoptTimes(model: Model, view: View, run: { readonly from: bigint; readonly to: bigint }): string[] {
  const wrong: string[] = [];
  for (const [path, node] of model.entries()) {
    const seen = view.get(path);
    if (node.mtime !== null || seen === undefined) continue;
    const isNow = seen.mtime >= run.from - CLOCK_NS && seen.mtime <= run.to + CLOCK_NS;
    if (!isNow && seen.mtime !== node.formerMtime) wrong.push(`${JSON.stringify(path)}: ${seen.mtime}`);
    node.mtime = seen.mtime;
  }
  return wrong;
}
