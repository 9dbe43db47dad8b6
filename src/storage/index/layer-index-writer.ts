import { type FileHandle, open } from "node:fs/promises";
import { DISK_BYTES_MAX, INDEX_LIMITS, type IndexLimits } from "../limits.ts";
import { Pacer, sortPaced } from "../pacer.ts";
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
import { doubled, type NameTable } from "./name-table.ts";

const FLUSH_BYTES = 1_048_576;
const INITIAL_ENTRIES_COUNT = 1024;

export interface WrittenIndex {
  /** entries of the layer without its root; zero means that the layer changes nothing */
  readonly entryCount: number;
  /** `bytes` of the disk that files use */
  readonly contentBytes: number;
}

/**
 * Checks the index stream of a layer, which a hostile guest may have sent, and writes it to `path` (a new file) in
 * the form that `LayerIndex` reads. The file is synced. Memory is bounded by the limits of `limits.ts`, and the
 * event loop goes on meanwhile.
 * @throws LayerIndexError when anything in the stream is not as it must be; the file is then worthless
 */
export async function writeLayerIndex(options: {
  readonly stream: AsyncIterable<Uint8Array>;
  readonly path: string;
  readonly diskBytes: number;
  readonly limits?: IndexLimits;
}): Promise<WrittenIndex> {
  const { stream, path, diskBytes, limits = INDEX_LIMITS } = options;
  if (diskBytes > DISK_BYTES_MAX) throw new LayerIndexError(`disk of ${diskBytes} bytes`);
  await using file = await open(path, "wx", 0o600);
  const output = new IndexOutput(file);
  const builder = new IndexBuilder(output, diskBytes, limits);
  const pacer = new Pacer();
  await readRecords(bounded(stream, limits.streamBytesMax), builder, output, pacer);
  const written = await builder.finish(pacer);
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

async function readRecords(
  stream: AsyncIterable<Uint8Array>,
  builder: IndexBuilder,
  output: IndexOutput,
  pacer: Pacer,
): Promise<void> {
  const splitter = new RecordSplitter();
  for await (const chunk of stream) {
    splitter.push(chunk);
    for (let record = splitter.next(); record !== null; record = splitter.next()) {
      builder.add(parseRecord(record));
      if (output.isFull) await output.flush();
      if (pacer.due()) await pacer.yield();
    }
  }
  splitter.end();
}

/** Appends to a file through a buffer that takes any one record even when it `isFull`. */
class IndexOutput {
  readonly #file: FileHandle;
  #buffer = Buffer.alloc(2 * FLUSH_BYTES);
  #used = 0;
  #flushedBytes = HEADER_BYTES;

  constructor(file: FileHandle) {
    this.#file = file;
  }

  /** offset of the next byte in the file */
  get position(): number {
    return this.#flushedBytes + this.#used;
  }

  get isFull(): boolean {
    return this.#used >= FLUSH_BYTES;
  }

  /** Room for `length` bytes, which count as written. */
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
    await this.#writeAt(this.#buffer.subarray(0, this.#used), this.#flushedBytes);
    this.#flushedBytes += this.#used;
    this.#used = 0;
  }

  async writeHeader(header: Buffer): Promise<void> {
    await this.#writeAt(header, 0);
  }

  async #writeAt(bytes: Buffer, position: number): Promise<void> {
    let done = 0;
    while (done < bytes.length) {
      const { bytesWritten } = await this.#file.write(bytes, done, bytes.length - done, position + done);
      done += bytesWritten;
    }
  }
}

/** Puts valid records behind each other and remembers what the table needs. */
class IndexBuilder {
  readonly #output: IndexOutput;
  readonly #validator: LayerValidator;
  readonly #names: NameTable;
  readonly #diskBytes: number;
  #recordOffsets = new Float64Array(INITIAL_ENTRIES_COUNT);
  /** extents of a file; of a directory, later, the number of its children */
  #counts = new Uint32Array(INITIAL_ENTRIES_COUNT);

  constructor(output: IndexOutput, diskBytes: number, limits: IndexLimits) {
    this.#output = output;
    this.#diskBytes = diskBytes;
    this.#validator = new LayerValidator(diskBytes, limits);
    this.#names = this.#validator.names;
  }

  /** @throws LayerIndexError */
  add(record: StreamRecord): void {
    const entry = this.#validator.accept(record);
    if (entry === this.#recordOffsets.length) {
      this.#recordOffsets = doubled(this.#recordOffsets, Float64Array);
      this.#counts = doubled(this.#counts, Uint32Array);
    }
    if (record.type !== RecordType.moreExtents) this.#append(entry, record);
    this.#output.append(record.extents);
    this.#counts[entry] = (this.#counts[entry] as number) + record.extents.length / EXTENT_BYTES;
  }

  #append(entry: number, record: StreamRecord): void {
    const name = record.path.subarray(record.path.lastIndexOf("/") + 1);
    this.#recordOffsets[entry] = this.#output.position;
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
    for (let position = 0; position < order.length; position++) order[position] = position + 1;
    await sortPaced(order, this.#names.compare, pacer);
    const firstChildren = this.#countChildren(order);
    await this.#output.flush();
    const tableOffset = this.#output.position;
    this.#appendTableEntry(0, firstChildren);
    for (const entry of order) {
      this.#appendTableEntry(entry, firstChildren);
      if (this.#output.isFull) await this.#output.flush();
    }
    await this.#output.flush();
    await this.#output.writeHeader(encodeHeader({ tableCount, tableOffset, diskBytes: this.#diskBytes, contentBytes }));
    return { entryCount: tableCount - 1, contentBytes };
  }

  /** First child of each directory in the table, whose first entry is the root; counts the children on the way. */
  #countChildren(order: Uint32Array): Uint32Array {
    const firstChildren = new Uint32Array(this.#names.count);
    for (let position = 0; position < order.length; position++) {
      const parent = this.#names.parentOf(order[position] as number);
      if (this.#counts[parent] === 0) firstChildren[parent] = position + 1;
      this.#counts[parent] = (this.#counts[parent] as number) + 1;
    }
    return firstChildren;
  }

  #appendTableEntry(entry: number, firstChildren: Uint32Array): void {
    const { buffer, offset } = this.#output.take(TABLE_ENTRY_BYTES);
    const isDirectory = this.#validator.isDirectory(entry);
    const count = this.#counts[entry] as number;
    writeSafeU64(buffer, this.#recordOffsets[entry] as number, offset);
    buffer.writeUInt32LE(isDirectory ? (firstChildren[entry] as number) : count, offset + 8);
    buffer.writeUInt32LE(isDirectory ? count : 0, offset + 12);
  }
}
