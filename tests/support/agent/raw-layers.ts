import { dlopen, FFIType, ptr } from "bun:ffi";
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  lchownSync,
  linkSync,
  lutimesSync,
  mkdirSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import fc from "fast-check";

const libc = dlopen("libc.so.6", {
  lsetxattr: { args: [FFIType.ptr, FFIType.ptr, FFIType.ptr, FFIType.u64, FFIType.i32], returns: FFIType.i32 },
});

export function setXattr(path: string, name: string, value: string): void {
  const bytes = Buffer.from(`${value}\0`, "latin1");
  const text = (word: string) => ptr(Buffer.from(`${word}\0`));
  const result = libc.symbols.lsetxattr(text(path), text(name), ptr(bytes), bytes.length - 1, 0);
  if (result !== 0) throw new Error(`${name} of ${path} cannot be set: root and ext4 or xfs are needed`);
}

export function command(...argv: [string, ...string[]]): string {
  const { status, stdout, stderr } = spawnSync(argv[0], argv.slice(1), { timeout: 30_000 });
  if (status !== 0) throw new Error(`${argv.join(" ")}: ${stderr.toString()}`);
  return stdout.toString();
}

/** The entry of a layer under one name, as overlayfs stores it. */
export type RawNode =
  | { readonly type: "file"; readonly size: number; readonly facts: RawFacts }
  /** another name of the layer's first file */
  | { readonly type: "link" }
  | { readonly type: "symlink"; readonly target: string; readonly facts: RawFacts }
  | { readonly type: "fifo"; readonly facts: RawFacts }
  | { readonly type: "whiteout" }
  | { readonly type: "directory"; readonly opaque: boolean; readonly children: RawTree; readonly facts: RawFacts };

export interface RawFacts {
  readonly mode: number;
  readonly uid: number;
  readonly mtime: number;
  readonly xattr: string | null;
}

export type RawTree = Readonly<Record<string, RawNode>>;

const facts: fc.Arbitrary<RawFacts> = fc.record({
  mode: fc.constantFrom(0o755, 0o4711, 0o2770, 0o1777, 0o600),
  uid: fc.constantFrom(0, 7, 4_294_967_294),
  mtime: fc.integer({ min: -1000, max: 2_000_000_000 }),
  xattr: fc.option(fc.string({ maxLength: 20 }), { freq: 4 }),
});
/** Few names, so that layers often share some. */
const name = fc.constantFrom("a", "b", "c", "d");

/** Directories of a layer, in forms that any run might produce. */
export const rawTree: fc.Arbitrary<RawTree> = fc.letrec<{ tree: RawTree; node: RawNode }>((tie) => ({
  tree: fc.dictionary(name, tie("node"), { maxKeys: 4, noNullPrototype: true }),
  node: fc.oneof(
    { maxDepth: 3, depthSize: "large" },
    fc.record({ type: fc.constant("file" as const), size: fc.integer({ min: 0, max: 9000 }), facts }),
    fc.constant({ type: "link" } as const),
    fc.record({ type: fc.constant("symlink" as const), target: fc.constantFrom("a", "../b", "/c/d"), facts }),
    fc.record({ type: fc.constant("fifo" as const), facts }),
    fc.constant({ type: "whiteout" } as const),
    { weight: 6, arbitrary: directory(tie("tree") as fc.Arbitrary<RawTree>) },
  ) as fc.Arbitrary<RawNode>,
})).tree;

function directory(children: fc.Arbitrary<RawTree>): fc.Arbitrary<RawNode> {
  const opaque = fc.oneof({ weight: 3, arbitrary: fc.constant(false) }, { weight: 1, arbitrary: fc.constant(true) });
  return fc.record({ type: fc.constant("directory" as const), opaque, children, facts });
}

/** Writes the tree below the directory `upper`; the content of every file is its layer and path. */
export function writeRawTree(upper: string, tree: RawTree): void {
  const state: { first: string | null } = { first: null };
  writeChildren(upper, tree, state);
}

function writeChildren(parent: string, tree: RawTree, state: { first: string | null }): void {
  for (const [childName, node] of Object.entries(tree)) {
    const path = join(parent, childName);
    switch (node.type) {
      case "file":
        writeFileSync(path, path.repeat(Math.ceil(node.size / path.length)).slice(0, node.size));
        state.first ??= path;
        break;
      case "link":
        if (state.first === null) writeFileSync(path, "alone");
        else linkSync(state.first, path);
        break;
      case "symlink":
        symlinkSync(node.target, path);
        break;
      case "fifo":
        command("mkfifo", path);
        break;
      case "whiteout":
        command("mknod", path, "c", "0", "0");
        break;
      case "directory":
        mkdirSync(path);
        writeChildren(path, node.children, state);
        if (node.opaque) setXattr(path, "trusted.overlay.opaque", "y");
        break;
    }
    if ("facts" in node) writeFacts(path, node.facts, node.type === "symlink");
  }
}

function writeFacts(path: string, { mode, uid, mtime, xattr }: RawFacts, isLink: boolean): void {
  if (isLink) lchownSync(path, uid, 3);
  else chownSync(path, uid, 3);
  if (!isLink) chmodSync(path, mode);
  if (xattr !== null) setXattr(path, "trusted.test", Buffer.from(xattr).toString("latin1"));
  if (isLink) lutimesSync(path, 1, mtime);
  else utimesSync(path, 1, mtime);
}
