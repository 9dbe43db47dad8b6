import { type ByteString, byteStringToBytes, bytesToByteString } from "../../domain/tree/guest-path.ts";
import { IndexFlag } from "../../domain/tree/index-stream.ts";
import type { Entry, EntryType } from "../../domain/tree/listing.ts";
import { type IndexPages, type IndexSource, loadIndexFile, openIndexFile } from "./index-source.ts";
import {
  decodeHeader,
  decodeRecord,
  EXTENT_BYTES,
  HEADER_BYTES,
  type IndexHeader,
  LayerIndexError,
  RECORD_FIXED_BYTES,
  type RecordFields,
  type RecordLengths,
  readSafeU64,
  TABLE_ENTRY_BYTES,
  XATTR_HEADER_BYTES,
} from "./layer-index-format.ts";

/** Covers most records up to the end of the target, so that one read is enough. */
const RECORD_READ_BYTES = 512;
/** All indexes share these buffers, because their contents are decoded before the next read. */
const TABLE_BUFFER = Buffer.alloc(TABLE_ENTRY_BYTES);
const RECORD_BUFFER = Buffer.alloc(RECORD_READ_BYTES);

/** An entry of one layer. A whiteout ("w") hides entries of lower layers with its name. */
export interface LayerEntry extends Omit<Entry, "type"> {
  readonly type: EntryType | "w";
  /** for a directory: hides the contents of the same directory in lower layers */
  readonly opaque: boolean;
  readonly inode: number;
  readonly rdevMajor: number;
  readonly rdevMinor: number;
  readonly xattrCount: number;
  readonly extentCount: number;
  readonly offsets: EntryOffsets;
}

/** Positions in the index of the other data of an entry. */
interface EntryOffsets {
  readonly xattrsOffset: number;
  readonly xattrBytes: number;
  readonly extentsOffset: number;
  /** consecutive entries of the table with the children of a directory */
  readonly firstChild: number;
  readonly childCount: number;
}

/** The `length` bytes at `logical` of the file are at `physical` of the disk. */
export interface Extent {
  readonly logical: number;
  readonly physical: number;
  readonly length: number;
}

export interface Xattr {
  readonly name: ByteString;
  readonly value: Uint8Array;
}

interface TableEntry {
  readonly recordOffset: number;
  readonly first: number;
  readonly second: number;
}

/** The stored index of one layer. It is read on demand, or, if it is small, kept in memory. */
export class LayerIndex {
  readonly #source: IndexSource;
  readonly #header: IndexHeader;
  /** for an index in memory: decoded children of directories, by the position of the first child */
  readonly #decoded = new Map<number, readonly LayerEntry[]>();
  #knownRoot: LayerEntry | null = null;

  private constructor(source: IndexSource) {
    this.#source = source;
    const bytes = Buffer.alloc(Math.min(HEADER_BYTES, source.sizeBytes));
    this.#header = decodeHeader(source.read(bytes, 0), source.sizeBytes);
  }

  /** @throws LayerIndexError when the file is not a complete index */
  static open(path: string, pages: IndexPages | null = null): LayerIndex {
    const source = openIndexFile(path, pages);
    try {
      return new LayerIndex(source);
    } catch (error) {
      source.close();
      throw error;
    }
  }

  /**
   * Reads a whole index into memory, so that it needs no descriptor; null when it is larger than `bytesMax`.
   * @throws LayerIndexError when the file is not a complete index
   */
  static load(path: string, bytesMax: number): LayerIndex | null {
    const source = loadIndexFile(path, bytesMax);
    return source === null ? null : new LayerIndex(source);
  }

  /** Closes the file. Idempotent. */
  close(): void {
    this.#source.close();
  }

  /** size of the index file, in `bytes` */
  get sizeBytes(): number {
    return this.#source.sizeBytes;
  }

  root(): LayerEntry {
    if (this.#knownRoot !== null) return this.#knownRoot;
    const root = this.#entry(this.#tableEntry(0));
    if (this.#source.isInMemory) this.#knownRoot = root;
    return root;
  }

  /** The child of a directory of this layer, which may be a whiteout; null when there is none. */
  child(directory: Pick<LayerEntry, "offsets">, name: ByteString): LayerEntry | null {
    const { firstChild, childCount } = directory.offsets;
    if (childCount === 0) return null;
    if (this.#source.isInMemory) {
      const entries = this.#childrenOf(directory);
      const entry = entries[lowerBound(entries, name)];
      return entry?.name === name ? entry : null;
    }
    const position = this.#lowerBound(firstChild, childCount, byteStringToBytes(name));
    if (position === firstChild + childCount) return null;
    const entry = this.#entry(this.#tableEntry(position));
    return entry.name === name ? entry : null;
  }

  /** At most `limit` children after the name `after`, ordered by the bytes of their names, including whiteouts. */
  children(directory: Pick<LayerEntry, "offsets">, after: ByteString | null, limit: number): readonly LayerEntry[] {
    const { firstChild, childCount } = directory.offsets;
    if (childCount === 0 || limit <= 0) return [];
    // No name sorts between a name and the same name followed by NUL.
    const next = after === null ? null : (`${after}\0` as ByteString);
    if (this.#source.isInMemory) {
      const entries = this.#childrenOf(directory);
      const from = next === null ? 0 : lowerBound(entries, next);
      return from === 0 && entries.length <= limit ? entries : entries.slice(from, from + limit);
    }
    const start = next === null ? firstChild : this.#lowerBound(firstChild, childCount, byteStringToBytes(next));
    return this.#entries(start, Math.min(limit, firstChild + childCount - start));
  }

  /** All children of a directory, decoded only once. */
  #childrenOf({ offsets: { firstChild, childCount } }: Pick<LayerEntry, "offsets">): readonly LayerEntry[] {
    let entries = this.#decoded.get(firstChild);
    if (entries === undefined) {
      entries = this.#entries(firstChild, childCount);
      this.#decoded.set(firstChild, entries);
    }
    return entries;
  }

  /** Consecutive entries of the table. */
  #entries(start: number, count: number): LayerEntry[] {
    if (count <= 0) return [];
    const table = this.#read(Buffer.alloc(count * TABLE_ENTRY_BYTES), this.#tableOffset(start));
    return Array.from({ length: count }, (_, at) => this.#entry(decodeTableEntry(table, at * TABLE_ENTRY_BYTES)));
  }

  /** At most `limit` extents of a file, beginning with extent number `first`, ordered by file offset. */
  extents(entry: LayerEntry, first: number, limit: number): Extent[] {
    const count = Math.min(limit, entry.extentCount - first);
    if (count <= 0) return [];
    const bytes = this.#read(Buffer.alloc(count * EXTENT_BYTES), entry.offsets.extentsOffset + first * EXTENT_BYTES);
    return Array.from({ length: count }, (_, at) => decodeExtent(bytes, at * EXTENT_BYTES));
  }

  /** Number of the first extent that ends after the file offset `offset`; `extentCount` when there is none. */
  extentAt(entry: LayerEntry, offset: number): number {
    let low = 0;
    let high = entry.extentCount;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      const [extent] = this.extents(entry, middle, 1) as [Extent];
      if (extent.logical + extent.length > offset) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  xattrs(entry: LayerEntry): Xattr[] {
    const bytes = this.#read(Buffer.alloc(entry.offsets.xattrBytes), entry.offsets.xattrsOffset);
    const xattrs: Xattr[] = [];
    for (let offset = 0; offset < bytes.length; ) {
      const nameStart = offset + XATTR_HEADER_BYTES;
      const valueStart = nameStart + bytes.readUInt16LE(offset);
      const end = valueStart + bytes.readUInt32LE(offset + 4);
      const name = bytesToByteString(bytes.subarray(nameStart, valueStart));
      xattrs.push({ name, value: bytes.subarray(valueStart, end) });
      offset = end;
    }
    return xattrs;
  }

  /** First position among `count` entries whose name does not sort before `name`. */
  #lowerBound(first: number, count: number, name: Buffer): number {
    let low = first;
    let high = first + count;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (Buffer.compare(this.#nameAt(middle), name) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** A name, valid until the next read. */
  #nameAt(position: number): Buffer {
    const record = this.#record(this.#tableEntry(position).recordOffset);
    return record.subarray(RECORD_FIXED_BYTES, RECORD_FIXED_BYTES + record.readUInt16LE(2));
  }

  #tableOffset(position: number): number {
    return this.#header.tableOffset + position * TABLE_ENTRY_BYTES;
  }

  #tableEntry(position: number): TableEntry {
    return decodeTableEntry(this.#read(TABLE_BUFFER, this.#tableOffset(position)), 0);
  }

  /** The first bytes of a record, valid until the next read. */
  #record(offset: number): Buffer {
    // The table follows the records, so this read never goes beyond the end of the file.
    const available = this.#header.tableOffset + this.#header.tableCount * TABLE_ENTRY_BYTES - offset;
    const length = Math.min(RECORD_READ_BYTES, available);
    if (length < RECORD_FIXED_BYTES) throw new LayerIndexError("layer index is damaged");
    return this.#read(RECORD_BUFFER.subarray(0, length), offset);
  }

  #entry(at: TableEntry): LayerEntry {
    const record = this.#record(at.recordOffset);
    const fields = decodeRecord(record);
    const targetStart = RECORD_FIXED_BYTES + fields.nameBytes;
    const xattrsStart = targetStart + fields.targetBytes;
    const name = record.toString("latin1", RECORD_FIXED_BYTES, targetStart) as ByteString;
    const target =
      xattrsStart <= record.length
        ? record.subarray(targetStart, xattrsStart)
        : this.#read(Buffer.alloc(fields.targetBytes), at.recordOffset + targetStart);
    return decodeEntry(fields, name, bytesToByteString(target), at);
  }

  #read(buffer: Buffer, position: number): Buffer {
    return this.#source.read(buffer, position);
  }
}

/** First position whose name does not sort before `name`. Each character of a ByteString stands for a byte. */
function lowerBound(entries: readonly LayerEntry[], name: ByteString): number {
  let low = 0;
  let high = entries.length;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if ((entries[middle] as LayerEntry).name < name) low = middle + 1;
    else high = middle;
  }
  return low;
}

function decodeTableEntry(table: Buffer, offset: number): TableEntry {
  const recordOffset = readSafeU64(table, offset);
  if (recordOffset === null) throw new LayerIndexError("layer index is damaged");
  return { recordOffset, first: table.readUInt32LE(offset + 8), second: table.readUInt32LE(offset + 12) };
}

function decodeExtent(bytes: Buffer, offset: number): Extent {
  const logical = readSafeU64(bytes, offset);
  const physical = readSafeU64(bytes, offset + 8);
  const length = readSafeU64(bytes, offset + 16);
  if (logical === null || physical === null || length === null) throw new LayerIndexError("layer index is damaged");
  return { logical, physical, length };
}

function decodeEntry(
  fields: RecordFields & RecordLengths,
  name: ByteString,
  target: ByteString,
  at: TableEntry,
): LayerEntry {
  const type = String.fromCharCode(fields.type) as LayerEntry["type"];
  const isDirectory = type === "d";
  const xattrsOffset = at.recordOffset + RECORD_FIXED_BYTES + fields.nameBytes + fields.targetBytes;
  return {
    name,
    type,
    mode: fields.mode,
    uid: fields.uid,
    gid: fields.gid,
    nlink: fields.nlink,
    size: fields.size,
    mtimeSeconds: fields.mtimeSeconds,
    mtimeNanoseconds: fields.mtimeNanoseconds,
    target,
    opaque: (fields.flags & IndexFlag.opaque) !== 0,
    inode: fields.inode,
    rdevMajor: fields.rdevMajor,
    rdevMinor: fields.rdevMinor,
    xattrCount: fields.xattrCount,
    extentCount: isDirectory ? 0 : at.first,
    offsets: {
      xattrsOffset,
      xattrBytes: fields.xattrBytes,
      extentsOffset: xattrsOffset + fields.xattrBytes,
      firstChild: isDirectory ? at.first : 0,
      childCount: isDirectory ? at.second : 0,
    },
  };
}
