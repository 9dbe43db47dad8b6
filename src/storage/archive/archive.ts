import { type ByteString, isUtf8 } from "../../domain/tree/guest-path.ts";
import type { LayerEntry } from "../index/layer-index.ts";
import { READ_CHUNK_BYTES } from "../limits.ts";
import { type Cancellation, Pacer } from "../pacer.ts";
import type { LinkTable } from "../tree/archive-links.ts";
import type { LocatedEntry } from "../tree/directory-merge.ts";
import { extentChunks, segmentChunks } from "../tree/extent-stream.ts";
import type { ImageTree, ResolvedEntry } from "../tree/image-tree.ts";
import type { LayerLease } from "../tree/open-layers.ts";
import { aclRecord } from "./tar-acl.ts";
import { encodeTarHeader, type PaxRecord, paddingOf, TarType, tarEnd, xattrKey } from "./tar-format.ts";
import { sparseLayout, sparseMap, sparseSegments } from "./tar-sparse.ts";

/** Small pieces are combined to chunks of this size, in `bytes`. */
const GATHER_BYTES = 65_536;

const TYPES: Readonly<Record<string, TarType>> = {
  f: TarType.file,
  d: TarType.directory,
  l: TarType.symlink,
  c: TarType.char,
  b: TarType.block,
  p: TarType.fifo,
};

/**
 * A pax archive of `resolved` and everything below it. Paths are relative to `resolved`; a single file is called `name`.
 * The archive has owners, modes, times in nanoseconds, hard links within a layer, extended attributes, devices and holes.
 * It omits sockets, which archives cannot hold. The memory use does not depend on the tree. A chunk is valid until the
 * next one is requested.
 * @throws the error of `cancellation`
 */
export async function* archiveChunks(
  tree: ImageTree,
  resolved: ResolvedEntry,
  name: ByteString,
  cancellation: Cancellation | null = null,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  const gatherer = new Gatherer();
  using links = tree.links();
  const pacer = new Pacer(cancellation);
  const root = resolved.type === "d" ? "./" : "";
  for await (const walked of tree.walk(resolved)) {
    const path = `${root}${root === "" ? name : walked.path}` as ByteString;
    if (pacer.shouldYield()) await pacer.yield();
    using lease = tree.lease(walked.located);
    const entry = { lease, located: walked.located, path };
    for await (const piece of entryPieces(entry, links, pacer)) yield* gatherer.add(piece);
  }
  yield* gatherer.add(tarEnd());
  yield* gatherer.rest();
}

/** An entry that is being written to an archive. */
export interface ArchivedEntry {
  readonly lease: LayerLease;
  readonly located: LocatedEntry;
  /** path in the archive */
  readonly path: ByteString;
}

/** Header and content of one entry; nothing for a type that archives cannot hold. */
export async function* entryPieces(
  { lease, located, path }: ArchivedEntry,
  links: LinkTable,
  pacer: Pacer,
): AsyncGenerator<Uint8Array, void, undefined> {
  const { entry } = located;
  const type = TYPES[entry.type];
  if (type === undefined) return;
  const first = links.firstOf(located, path);
  if (first !== null) {
    yield header(entry, { path, type: TarType.link, target: first, size: 0, records: [] });
    return;
  }
  const records = await xattrRecords(lease, entry, pacer);
  if (type === TarType.file) {
    yield* filePieces({ lease, located, path }, records, pacer);
    return;
  }
  const isDirectory = type === TarType.directory;
  const archivePath = (isDirectory && !path.endsWith("/") ? `${path}/` : path) as ByteString;
  yield header(entry, { path: archivePath, type, target: entry.target, size: 0, records });
}

async function* filePieces(
  { lease, located: { entry }, path }: ArchivedEntry,
  records: readonly PaxRecord[],
  pacer: Pacer,
): AsyncGenerator<Uint8Array, void, undefined> {
  const plain = { type: TarType.file, target: "" as ByteString };
  const sparse = await sparseLayout(lease, entry, pacer);
  if (sparse === null) {
    yield header(entry, { ...plain, path, size: entry.size, records });
    if (entry.size > 0) yield* extentChunks(() => lease.share(), entry, { start: 0, end: entry.size });
    yield Buffer.alloc(paddingOf(entry.size));
    return;
  }
  const size = sparse.mapBytes + sparse.dataBytes;
  const marks: PaxRecord[] = [
    ...(isUtf8(path) ? [] : [["hdrcharset", "BINARY"] as const]),
    ["GNU.sparse.major", "1"],
    ["GNU.sparse.minor", "0"],
    ["GNU.sparse.name", Buffer.from(path, "latin1")],
    ["GNU.sparse.realsize", String(entry.size)],
  ];
  yield header(entry, { ...plain, path, size, records: [...marks, ...records] });
  for await (const text of sparseMap(lease, entry, sparse, pacer)) yield Buffer.from(text, "latin1");
  yield* segmentChunks(() => lease.share(), entry, sparseSegments(lease, entry, pacer));
  yield Buffer.alloc(paddingOf(size));
}

function header(
  entry: LayerEntry,
  rest: {
    readonly path: ByteString;
    readonly type: TarType;
    readonly target: ByteString;
    readonly size: number;
    readonly records: readonly PaxRecord[];
  },
): Buffer {
  const { mode, uid, gid, mtimeSeconds, mtimeNanoseconds, rdevMajor, rdevMinor } = entry;
  return encodeTarHeader({ mode, uid, gid, mtimeSeconds, mtimeNanoseconds, rdevMajor, rdevMinor, ...rest });
}

async function xattrRecords(lease: LayerLease, entry: LayerEntry, pacer: Pacer): Promise<PaxRecord[]> {
  const records: PaxRecord[] = [];
  if (entry.xattrCount === 0) return records;
  for (const xattr of lease.index.xattrs(entry)) {
    const acl = aclRecord(xattr);
    records.push([xattrKey(xattr.name), xattr.value], ...(acl === null ? [] : [acl]));
    if (pacer.shouldYield()) await pacer.yield();
  }
  return records;
}

/** Combines small pieces to larger chunks; large pieces pass unchanged. */
export class Gatherer {
  readonly #buffer = Buffer.allocUnsafeSlow(GATHER_BYTES + READ_CHUNK_BYTES);
  #used = 0;

  *add(piece: Uint8Array): Generator<Uint8Array<ArrayBuffer>, void, undefined> {
    if (this.#used + piece.length > this.#buffer.length) yield* this.rest();
    if (piece.length > this.#buffer.length) {
      yield piece as Uint8Array<ArrayBuffer>;
      return;
    }
    this.#buffer.set(piece, this.#used);
    this.#used += piece.length;
    if (this.#used >= GATHER_BYTES) yield* this.rest();
  }

  *rest(): Generator<Uint8Array<ArrayBuffer>, void, undefined> {
    if (this.#used > 0) yield this.#buffer.subarray(0, this.#used);
    this.#used = 0;
  }
}
