import { LayerIndex } from "../index/layer-index.ts";

/** Whether the root directories of two layers have the same attributes. The paths are those of the indexes. */
export function haveSameRoot(first: string, second: string): boolean {
  return describeRoot(first) === describeRoot(second);
}

function describeRoot(path: string): string {
  const index = LayerIndex.open(path);
  using _open = { [Symbol.dispose]: () => index.close() };
  const root = index.root();
  const { mode, uid, gid, mtimeSeconds, mtimeNanoseconds } = root;
  const xattrs = index.xattrs(root).map(({ name, value }) => [name, Buffer.from(value).toString("base64")] as const);
  // File systems may list attributes in different orders.
  xattrs.sort(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify([mode, uid, gid, mtimeSeconds, mtimeNanoseconds, xattrs]);
}
