import { type FileHandle, open } from "node:fs/promises";
import { DISK_BYTES_MAX, INDEX_LIMITS, type IndexLimits } from "../limits.ts";
import { Pacer, STEP_COUNT, sortPaced } from "../pacer.ts";
import { Column } from "./columns.ts";
import { IndexMemory, type MemoryShare } from "./index-memory.ts";
import {
  EXTENT_BYTES,
  encodeHeader,
  encodeRecord,
  HEADER_BYTES,
  LayerIndexError,
  RECORD_FIXED_BYTES,
  TABLE_ENTRY_BYTES,
  writeSafeU64,
} from "./layer-index-format.ts";
import { parseRecord, RecordSplitter, RecordType, type StreamRecord } from "./layer-index-stream.ts";
import { LayerValidator } from "./layer-validator.ts";
import type { NameTable } from "./name-table.ts";

const FLUSH_BYTES = 1_048_576;
/** Bytes of extents that are checked at a time. */
const EXTENTS_PIECE_BYTES = 128 * EXTENT_BYTES;
/** Bytes of a spooled stream that are read at a time. */
const READ_BYTES = 65_536;
/** Memory that the last step needs for each entry, in `bytes`: two copies of the order, and first children. */
const FINISH_BYTES = 12;

export interface WrittenIndex {
  /** entries of the layer without its root; zero means that the layer changes nothing */
  readonly entryCount: number;
  /** disk space of all files, in `bytes` */
  readonly contentBytes: number;
}

export interface IndexWriting {
  /** comes from a guest, which may be hostile */
  readonly stream: AsyncIterable<Uint8Array>;
  /** path of a new file; the stream is spooled to its end when there is no memory to process it at once */
  readonly path: string;
  /** size of the indexed disk, in `bytes` */
  readonly diskBytes: number;
  readonly limits?: IndexLimits;
  /** shared by all indexes that are being written; default: a budget of its own */
  readonly memory?: IndexMemory;
  readonly signal?: AbortSignal | null;
}

/**
 * Checks the index stream of a layer, which may come from a hostile guest, and writes it to `path` in the format of
 * `LayerIndex`. The file is synced. `limits` bounds the memory use, `memory` counts it, and the work yields to the event
 * loop. The stream is always read without delay, so that no guest waits for memory with half of its listing sent.
 * @throws LayerIndexError when the stream is invalid, and the file is useless; the reason of `signal`
 */
export async function writeLayerIndex(options: IndexWriting): Promise<WrittenIndex> {
  const { stream, path, diskBytes, limits = INDEX_LIMITS, memory = new IndexMemory(), signal = null } = options;
  if (diskBytes > DISK_BYTES_MAX) throw new LayerIndexError(`disk of ${diskBytes} bytes`);
  await using file = await open(path, "wx+", 0o600);
  using share = memory.open();
  const output = new IndexOutput(file);
  const reader = new StreamReader(new IndexBuilder(output, diskBytes, limits), output, new Pacer(signal));
  const chunks = bounded(stream, limits.streamBytesMax);
  await using _ended = { [Symbol.asyncDispose]: async () => void (await chunks.return(undefined)) };
  if (!(await reader.read(chunks, share))) {
    // Spooled after the longest possible index, which is no longer than its stream and its table.
    const start = HEADER_BYTES + limits.streamBytesMax + limits.entriesCountMax * TABLE_ENTRY_BYTES;
    const end = await spool(file, start, chunks);
    await share.takeLargeSlot(signal);
    await reader.read(readSpool(file, start, end), share);
  }
  if (!share.reserve(reader.heldBytes + reader.entryCount * FINISH_BYTES)) await share.takeLargeSlot(signal);
  const written = await reader.finish();
  await file.truncate(output.position);
  await file.sync();
  return written;
}

async function* bounded(stream: AsyncIterable<Uint8Array>, bytesMax: number): AsyncGenerator<Uint8Array> {
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.byteLength;
    if (bytes > bytesMax) throw new LayerIndexError(`index stream of more than ${bytesMax} bytes`);
    yield chunk;
  }
}

/** Writes chunks to the file from `start` on, and returns their end. */
async function spool(file: FileHandle, start: number, chunks: AsyncIterable<Uint8Array>): Promise<number> {
  let position = start;
  for await (const chunk of chunks) {
    await writeAt(file, chunk, position);
    position += chunk.byteLength;
  }
  return position;
}

async function* readSpool(file: FileHandle, start: number, end: number): AsyncGenerator<Uint8Array> {
  const buffer = Buffer.allocUnsafeSlow(READ_BYTES);
  for (let position = start; position < end; ) {
    const { bytesRead } = await file.read(buffer, 0, Math.min(READ_BYTES, end - position), position);
    if (bytesRead === 0) throw new Error("the spooled index stream is cut short");
    position += bytesRead;
    yield buffer.subarray(0, bytesRead);
  }
}

async function writeAt(file: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  let done = 0;
  while (done < bytes.length) {
    const { bytesWritten } = await file.write(bytes, done, bytes.length - done, position + done);
    done += bytesWritten;
  }
}

/** Splits chunks into records and builds the index from them. */
class StreamReader {
  readonly #splitter = new RecordSplitter();
  readonly #builder: IndexBuilder;
  readonly #output: IndexOutput;
  readonly #pacer: Pacer;

  constructor(builder: IndexBuilder, output: IndexOutput, pacer: Pacer) {
    this.#builder = builder;
    this.#output = output;
    this.#pacer = pacer;
  }

  /** memory use, in `bytes` */
  get heldBytes(): number {
    return this.#splitter.heldBytes + this.#output.heldBytes + this.#builder.heldBytes;
  }

  /** including the root */
  get entryCount(): number {
    return this.#builder.entryCount;
  }

  /** Reads chunks while the share covers the memory use. Returns false when chunks are left. */
  async read(chunks: AsyncIterator<Uint8Array>, share: MemoryShare): Promise<boolean> {
    while (share.reserve(this.heldBytes)) {
      const step = await chunks.next();
      if (step.done === true) return true;
      if (this.#pacer.shouldYield()) await this.#pacer.yield();
      this.#splitter.push(step.value);
      for (let record = this.#splitter.next(); record !== null; record = this.#splitter.next()) {
        const { extents } = this.#addRecord(record);
        if (extents.length <= EXTENTS_PIECE_BYTES) this.#builder.addExtents(extents);
        else await this.#addManyExtents(extents);
        if (this.#output.isFull) await this.#output.flush();
        if (this.#pacer.shouldYield()) await this.#pacer.yield();
      }
    }
    return false;
  }

  #addRecord(bytes: Buffer): StreamRecord {
    const record = parseRecord(bytes);
    this.#builder.add(record);
    return record;
  }

  async #addManyExtents(extents: Buffer): Promise<void> {
    for (let at = 0; at < extents.length; at += EXTENTS_PIECE_BYTES) {
      this.#builder.addExtents(extents.subarray(at, at + EXTENTS_PIECE_BYTES));
      if (this.#pacer.shouldYield()) await this.#pacer.yield();
    }
  }

  /** @throws LayerIndexError when the stream is incomplete */
  async finish(): Promise<WrittenIndex> {
    this.#splitter.end();
    return await this.#builder.finish(this.#pacer);
  }
}

/** Appends to a file through a buffer, which has room for one more record even when it `isFull`. */
class IndexOutput {
  readonly #file: FileHandle;
  readonly #buffer = Buffer.allocUnsafeSlow(2 * FLUSH_BYTES);
  #used = 0;
  #flushedBytes = HEADER_BYTES;
  #checksum = 0;

  constructor(file: FileHandle) {
    this.#file = file;
  }

  /** file offset of the next byte */
  get position(): number {
    return this.#flushedBytes + this.#used;
  }

  get heldBytes(): number {
    return this.#buffer.length;
  }

  /** CRC-32 of the flushed bytes */
  get checksum(): number {
    return this.#checksum;
  }

  get isFull(): boolean {
    return this.#used >= FLUSH_BYTES;
  }

  /** Reserves `length` bytes of the buffer; they count as written. */
  take(length: number): { buffer: Buffer; offset: number } {
    const offset = this.#used;
    this.#used += length;
    if (this.#used > this.#buffer.length) throw new RangeError("index output is not flushed");
    return { buffer: this.#buffer, offset };
  }

  append(bytes: Buffer): void {
    const { buffer, offset } = this.take(bytes.length);
    bytes.copy(buffer, offset);
  }

  async flush(): Promise<void> {
    const bytes = this.#buffer.subarray(0, this.#used);
    this.#checksum = Bun.hash.crc32(bytes, this.#checksum);
    await writeAt(this.#file, bytes, this.#flushedBytes);
    this.#flushedBytes += this.#used;
    this.#used = 0;
  }

  async writeHeader(header: Buffer): Promise<void> {
    await writeAt(this.#file, header, 0);
  }
}

/** Appends valid records to the output, and collects the data of the table. */
class IndexBuilder {
  readonly #output: IndexOutput;
  readonly #validator: LayerValidator;
  readonly #names: NameTable;
  readonly #diskBytes: number;
  readonly #recordOffsets = new Column(Float64Array);
  /** number of extents of a file; at the end, number of children of a directory */
  readonly #counts = new Column(Uint32Array);
  /** the last entry that was added */
  #last = 0;

  constructor(output: IndexOutput, diskBytes: number, limits: IndexLimits) {
    this.#output = output;
    this.#diskBytes = diskBytes;
    this.#validator = new LayerValidator(diskBytes, limits);
    this.#names = this.#validator.names;
  }

  /** memory use, in `bytes` */
  get heldBytes(): number {
    return this.#validator.heldBytes + this.#recordOffsets.heldBytes + this.#counts.heldBytes;
  }

  /** including the root */
  get entryCount(): number {
    return this.#names.count;
  }

  /**
   * Adds a record without its extents; `addExtents` adds those.
   * @throws LayerIndexError
   */
  add(record: StreamRecord): void {
    this.#last = this.#validator.accept(record);
    if (record.type !== RecordType.moreExtents) this.#append(this.#last, record);
  }

  /** Adds extents of the last record. @throws LayerIndexError */
  addExtents(extents: Buffer): void {
    this.#validator.acceptExtents(extents);
    this.#output.append(extents);
    this.#counts.set(this.#last, this.#counts.get(this.#last) + extents.length / EXTENT_BYTES);
  }

  #append(entry: number, record: StreamRecord): void {
    const name = record.path.subarray(record.path.lastIndexOf("/") + 1);
    this.#recordOffsets.set(entry, this.#output.position);
    const { buffer, offset } = this.#output.take(RECORD_FIXED_BYTES);
    encodeRecord(buffer, offset, record, {
      nameBytes: name.length,
      targetBytes: record.target.length,
      xattrBytes: record.xattrs.length,
    });
    this.#output.append(name);
    this.#output.append(record.target);
    this.#output.append(record.xattrs);
  }

  async finish(pacer: Pacer): Promise<WrittenIndex> {
    const contentBytes = this.#validator.finish();
    const tableCount = this.#names.count;
    const order = new Uint32Array(tableCount - 1);
    for (let position = 0; position < order.length; position++) {
      order[position] = position + 1;
      if (position % STEP_COUNT === 0 && pacer.shouldYield()) await pacer.yield();
    }
    await sortPaced(order, this.#names.compare, pacer);
    const firstChildren = await this.#countChildren(order, pacer);
    await this.#output.flush();
    const tableOffset = this.#output.position;
    this.#appendTableEntry(0, firstChildren);
    for (const [position, entry] of order.entries()) {
      this.#appendTableEntry(entry, firstChildren);
      if (position % STEP_COUNT === 0 && pacer.shouldYield()) await pacer.yield();
      if (this.#output.isFull) await this.#output.flush();
    }
    await this.#output.flush();
    const bodyChecksum = this.#output.checksum;
    const header = { tableCount, tableOffset, diskBytes: this.#diskBytes, contentBytes, bodyChecksum };
    await this.#output.writeHeader(encodeHeader(header));
    return { entryCount: tableCount - 1, contentBytes };
  }

  /** The position of each directory's first child in the table, which begins with the root. Also counts the children. */
  async #countChildren(order: Uint32Array, pacer: Pacer): Promise<Column<Uint32Array>> {
    const firstChildren = new Column(Uint32Array);
    for (let position = 0; position < order.length; position++) {
      if (position % STEP_COUNT === 0 && pacer.shouldYield()) await pacer.yield();
      const parent = this.#names.parentOf(order[position] as number);
      const count = this.#counts.get(parent);
      if (count === 0) firstChildren.set(parent, position + 1);
      this.#counts.set(parent, count + 1);
    }
    return firstChildren;
  }

  #appendTableEntry(entry: number, firstChildren: Column<Uint32Array>): void {
    const { buffer, offset } = this.#output.take(TABLE_ENTRY_BYTES);
    const isDirectory = this.#validator.isDirectory(entry);
    const count = this.#counts.get(entry);
    writeSafeU64(buffer, this.#recordOffsets.get(entry), offset);
    buffer.writeUInt32LE(isDirectory ? firstChildren.get(entry) : count, offset + 8);
    buffer.writeUInt32LE(isDirectory ? count : 0, offset + 12);
  }
}
