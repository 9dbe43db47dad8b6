import { storageFull } from "../../domain/errors.ts";
import type { DataEventType, LogEventData, OutputEventType } from "../../domain/log-event.ts";
import { startTimer } from "../../system/waiting.ts";
import { EVENT_LOG_BYTES_MAX, EVENT_QUEUE_BYTES_MAX } from "../limits.ts";
import { EventFile } from "./event-file.ts";
import { GatheredOutputs, type OutputSource } from "./gathered-outputs.ts";
import { type OutputSizes, ProcessOutputs } from "./process-outputs.ts";
import { PositionIndex } from "./reader.ts";
import {
  FILE_MAGIC,
  HEADER_BYTES,
  OUTPUT_PAYLOAD_BYTES_MAX,
  PAYLOAD_BYTES_MAX,
  type RecordHead,
  sealRecord,
} from "./record.ts";
import { WritePace } from "./write-pace.ts";

/** Smallest and largest size of the memory blocks in which records are built, in `bytes`. */
const BLOCK_BYTES_MIN = 4096;
const BLOCK_BYTES_MAX = 65_536;
/** Number of written blocks that are reused; a full queue has as many. */
const SPARE_BLOCKS_COUNT_MAX = 16;
/**
 * Beyond this number of records, output is gathered by stream and written every `GATHER_MS` only, so that more of it becomes
 * one record: the headers of single bytes would make the file many times as large as the output. Each stream keeps its order.
 */
const GATHER_FROM_COUNT = 65_536;
const GATHER_MS = 10;
/** Beyond this number of records, output is written every `10 * GATHER_MS` only, and in a full log even less often. */
const GATHER_LONGER_FROM_COUNT = 1_048_576;
/** This part of a log is reserved for the headers of the command's outputs, which can be many. */
const HEADERS_SHARE = 1 / 8;

export interface EventWriterOptions {
  readonly path: string;
  /** ns since the epoch */
  readonly now: () => bigint;
  /** size of the file, in `bytes`, above which `isFull` is true, and output is dropped, first that of additional processes */
  readonly limitBytes?: number;
  /** called when more can be read, and when writing has failed */
  readonly onChange?: () => void;
}

/** A block of memory. Its bytes from `from` to `used` are not written yet. */
interface Block {
  readonly bytes: Buffer;
  from: number;
  used: number;
}

/** The latest record, which further output of the same stream extends. */
interface OpenRecord {
  readonly head: RecordHead;
  readonly block: Block;
  readonly start: number;
}

/**
 * Writes the event log of an operation. Calls return at once; events are written in the order of the calls, several at
 * a time. Output that a stream produces during a write becomes one record. The first event creates the file.
 */
export class EventWriter {
  /** positions of some events */
  readonly index = new PositionIndex();
  readonly path: string;
  readonly #options: EventWriterOptions;
  readonly #failed = new AbortController();
  readonly #pace = new WritePace();
  #file: EventFile | null = null;
  #blocks: Block[] = [];
  /** written blocks of the largest size, for reuse */
  readonly #spare: Buffer[] = [];
  #open: OpenRecord | null = null;
  /** output that is not in a record yet */
  readonly #gathered = new GatheredOutputs();
  /** true when the wait for more output must end */
  #isHurried = false;
  #endWait: () => void = () => undefined;
  #nextId = 0;
  /** size of the file once the queue is written */
  #bytes = 0;
  #writtenBytes = 0;
  /** room that is reserved for the outputs of the command, with their headers */
  #reservedBytes = 0;
  /** the part of the reserved room for headers */
  #reservedHeadersBytes = 0;
  #isCapped = false;
  #isEnded = false;
  #hasOutput = false;
  #work: Promise<void> | null = null;
  #ending: Promise<void> | null = null;
  #drained: PromiseWithResolvers<void> | null = null;

  constructor(options: EventWriterOptions) {
    this.#options = options;
    this.path = options.path;
  }

  /** Null before the first write. It may be disposed of after `end`. */
  get file(): EventFile | null {
    return this.#file;
  }

  /** Id of the next event. */
  get nextId(): number {
    return this.#nextId;
  }

  /** Size of the readable part, in `bytes`: whole records. */
  get writtenBytes(): number {
    return this.#writtenBytes;
  }

  /** Size of the part that is not written yet, in `bytes`. */
  get queuedBytes(): number {
    return this.#totalBytes - this.#writtenBytes;
  }

  /** True when the log has reached its size: only short events may follow. */
  get isFull(): boolean {
    return this.#isCapped || this.#totalBytes + this.#reservedBytes >= this.#limitBytes;
  }

  /** Aborts with the cause when a write fails. Events are dropped from then on. */
  get failed(): AbortSignal {
    return this.#failed.signal;
  }

  /** Appends an event; without effect after `end`. @throws Error when `data` is longer than a record may be */
  append<Type extends DataEventType>(spid: number | null, type: Type, data: LogEventData[Type]): void {
    const payload = Buffer.from(JSON.stringify(data), "utf8");
    if (payload.byteLength > PAYLOAD_BYTES_MAX) throw new Error(`an event of ${payload.byteLength} bytes`);
    if (this.#isOver) return;
    this.#record();
    const record = this.#begin({ spid, type }, payload.byteLength);
    payload.copy(record.block.bytes, record.block.used);
    this.#take(record.block, payload.byteLength);
    this.#seal();
    this.#schedule();
    this.#hurry();
  }

  /**
   * Opens the outputs of a process.
   * @param limitBytes limit of each of its two streams
   * @param isReserved true for the command: its outputs are part of the result, so other processes cannot use up their room
   * @param from sizes of the outputs that are already logged
   */
  outputs(spid: number, limitBytes: number, isReserved = false, from?: OutputSizes): ProcessOutputs {
    if (isReserved) {
      const keptBytes = (from?.stdout.kept ?? 0) + (from?.stderr.kept ?? 0);
      this.#reservedHeadersBytes = Math.floor(HEADERS_SHARE * this.#limitBytes);
      this.#reservedBytes = 2 * limitBytes - keptBytes + this.#reservedHeadersBytes;
    }
    return new ProcessOutputs({
      limitBytes,
      from,
      append: (type, data) => this.append(spid, type, data),
      write: (stream, bytes) => this.#output({ spid, stream, isReserved }, bytes),
      drained: () => this.#whenDrained(),
    });
  }

  /** Resolves when readers can read all events appended so far, or when writing has failed. */
  async written(): Promise<void> {
    this.#record();
    this.#hurry();
    for (const bytes = this.#bytes; this.#writtenBytes < bytes && !this.#failed.signal.aborted; ) await this.#work;
  }

  /**
   * Writes the queue and ends the log. From then on its output survives a power failure. Every call returns the
   * same promise.
   * @throws the cause when a write failed
   */
  end(): Promise<void> {
    this.#ending ??= this.#end();
    // The caller may await it later.
    this.#ending.catch(() => undefined);
    return this.#ending;
  }

  get #limitBytes(): number {
    return this.#options.limitBytes ?? EVENT_LOG_BYTES_MAX;
  }

  get #isOver(): boolean {
    return this.#isEnded || this.#failed.signal.aborted;
  }

  get #totalBytes(): number {
    return this.#bytes + this.#gathered.byteLength;
  }

  async #end(): Promise<void> {
    this.#record();
    this.#seal();
    this.#isEnded = true;
    this.#hurry();
    while (this.#work !== null) await this.#work;
    this.#failed.signal.throwIfAborted();
    if (this.#hasOutput) await this.#file?.sync();
  }

  /** Appends the prefix of `bytes` that there is room for; returns its length. */
  #output(source: OutputSource, bytes: Uint8Array): number {
    if (this.#isOver) return 0;
    const kept = bytes.subarray(0, this.#roomFor(bytes.byteLength, source.isReserved));
    if (kept.byteLength === 0) return 0;
    if (source.isReserved) this.#reservedBytes -= kept.byteLength;
    this.#hasOutput = true;
    if (this.#nextId > GATHER_FROM_COUNT) this.#gathered.push(source, kept);
    else this.#put(source, kept);
    this.#schedule();
    return kept.byteLength;
  }

  /** Makes records of the gathered output. */
  #record(): void {
    this.#gathered.drain((source, bytes) => this.#put(source, bytes));
  }

  /** Appends output to the latest record, or to new ones. */
  #put({ spid, stream, isReserved }: OutputSource, bytes: Uint8Array): void {
    const before = this.#bytes;
    for (let rest = bytes; rest.byteLength > 0; ) {
      const { block, start } = this.#recordFor(spid, stream, rest.byteLength);
      const freeBytes = start + HEADER_BYTES + OUTPUT_PAYLOAD_BYTES_MAX - block.used;
      const part = rest.subarray(0, Math.min(freeBytes, block.bytes.byteLength - block.used));
      block.bytes.set(part, block.used);
      this.#take(block, part.byteLength);
      rest = rest.subarray(part.byteLength);
    }
    if (!isReserved) return;
    const headersBytes = Math.min(this.#bytes - before - bytes.byteLength, this.#reservedHeadersBytes);
    this.#reservedHeadersBytes -= headersBytes;
    this.#reservedBytes -= headersBytes;
  }

  /**
   * Either `requestedBytes` or 0: the first output without room ends the output of all additional processes. The command's
   * output has its reserved room, and loses it only when its headers exceed theirs.
   */
  #roomFor(requestedBytes: number, isReserved: boolean): number {
    const headersBytes = HEADER_BYTES * (1 + Math.ceil(requestedBytes / OUTPUT_PAYLOAD_BYTES_MAX));
    if (isReserved && headersBytes <= this.#reservedHeadersBytes) return requestedBytes;
    if (this.#isCapped) return 0;
    const limitBytes = this.#limitBytes;
    const moreBytes = headersBytes + (isReserved ? 0 : requestedBytes);
    if (this.#totalBytes + this.#reservedBytes + moreBytes <= limitBytes) return requestedBytes;
    this.#isCapped = true;
    this.append(0, "size_cap", { limit_bytes: limitBytes, file_size: this.#totalBytes });
    return 0;
  }

  /** The record for further output: the latest one if it is of the same stream and has room, else a new one. */
  #recordFor(spid: number, type: OutputEventType, requestedBytes: number): OpenRecord {
    const last = this.#open;
    if (last !== null && last.head.spid === spid && last.head.type === type) {
      const { block, start } = last;
      const isFull = block.used === start + HEADER_BYTES + OUTPUT_PAYLOAD_BYTES_MAX;
      if (!isFull && block.used < block.bytes.byteLength) return last;
    }
    return this.#begin({ spid, type }, Math.min(requestedBytes, OUTPUT_PAYLOAD_BYTES_MAX));
  }

  /** Starts a record with room for `payloadBytes`. */
  #begin(head: Pick<RecordHead, "spid" | "type">, payloadBytes: number): OpenRecord {
    this.#seal();
    if (this.#nextId === 0) {
      const block = this.#blockFor(FILE_MAGIC.byteLength);
      FILE_MAGIC.copy(block.bytes, block.used);
      this.#take(block, FILE_MAGIC.byteLength);
    }
    const block = this.#blockFor(HEADER_BYTES + payloadBytes);
    const start = block.used;
    this.index.add({ id: this.#nextId, offset: this.#bytes });
    this.#take(block, HEADER_BYTES);
    const timeNs = this.#options.now();
    this.#open = { head: { ...head, id: this.#nextId++, timeNs }, block, start };
    return this.#open;
  }

  #blockFor(bytes: number): Block {
    const last = this.#blocks.at(-1);
    if (last !== undefined && last.bytes.byteLength - last.used >= bytes) return last;
    // The largest record fits the largest block.
    const requestedBytes = last === undefined ? BLOCK_BYTES_MIN : Math.min(BLOCK_BYTES_MAX, 4 * last.bytes.byteLength);
    const sizeBytes = Math.max(requestedBytes, bytes);
    const spare = sizeBytes === BLOCK_BYTES_MAX ? this.#spare.pop() : undefined;
    const block = { bytes: spare ?? Buffer.allocUnsafeSlow(sizeBytes), from: 0, used: 0 };
    this.#blocks.push(block);
    return block;
  }

  #take(block: Block, bytes: number): void {
    block.used += bytes;
    this.#bytes += bytes;
  }

  #seal(): void {
    if (this.#open === null) return;
    const { head, block, start } = this.#open;
    sealRecord(block.bytes.subarray(start, block.used), head);
    this.#open = null;
  }

  #whenDrained(): Promise<void> | undefined {
    if (this.#isOver || this.queuedBytes <= EVENT_QUEUE_BYTES_MAX) return undefined;
    this.#hurry();
    this.#drained ??= Promise.withResolvers();
    return this.#drained.promise;
  }

  #schedule(): void {
    this.#work ??= Promise.resolve().then(() => this.#write());
  }

  /** Writes until the queue is empty. */
  async #write(): Promise<void> {
    try {
      while (this.queuedBytes > 0) {
        if (this.#nextId > GATHER_FROM_COUNT && !this.#isEnded) await this.#waitForMore();
        await this.#writeOnce();
      }
    } catch (error) {
      await this.#fail(error);
    }
    this.#work = null;
  }

  async #waitForMore(): Promise<void> {
    const steps = this.isFull ? 100 : this.#nextId > GATHER_LONGER_FROM_COUNT ? 10 : 1;
    using timer = startTimer(steps * GATHER_MS);
    const hurried = Promise.withResolvers<void>();
    this.#endWait = hurried.resolve;
    if (!this.#isHurried) await Promise.race([timer.fired, hurried.promise]);
    this.#isHurried = false;
  }

  #hurry(): void {
    this.#isHurried = true;
    this.#endWait();
  }

  async #writeOnce(): Promise<void> {
    this.#file ??= await EventFile.create(this.path);
    const file = this.#file;
    this.#record();
    this.#seal();
    const waiting = this.#blocks.filter(({ from, used }) => used > from);
    const pieces = waiting.map(({ bytes, from, used }) => bytes.subarray(from, used));
    const bytes = pieces.reduce((sum, { byteLength }) => sum + byteLength, 0);
    for (const block of waiting) block.from = block.used;
    // Events that are appended during the write go into the last block, after the bytes that are being written.
    const filled = this.#blocks.slice(0, -1);
    this.#blocks = this.#blocks.slice(-1);
    if (this.#pace.allows(bytes)) this.#pace.time(() => file.writeNow(pieces, this.#writtenBytes));
    else await file.write(pieces, this.#writtenBytes);
    for (const block of filled) {
      if (this.#spare.length < SPARE_BLOCKS_COUNT_MAX && block.bytes.byteLength === BLOCK_BYTES_MAX) {
        this.#spare.push(block.bytes);
      }
    }
    this.#writtenBytes += bytes;
    if (this.queuedBytes <= EVENT_QUEUE_BYTES_MAX / 2) this.#release();
    this.#options.onChange?.();
  }

  /** Drops the queue. */
  async #fail(error: unknown): Promise<void> {
    this.#open = null;
    this.#blocks = [];
    this.#gathered.drain(() => undefined);
    this.#bytes = this.#writtenBytes;
    this.#failed.abort(storageFull(error) ?? error);
    this.#release();
    // Part of the failed write may be in the file.
    await this.#file?.truncate(this.#writtenBytes).catch(() => undefined);
    this.#options.onChange?.();
  }

  #release(): void {
    this.#drained?.resolve();
    this.#drained = null;
  }
}
