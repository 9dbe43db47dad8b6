import { storageFull } from "../../domain/errors.ts";
import type { DataEventType, LogEventData, OutputEventType } from "../../domain/log-event.ts";
import { EVENT_LOG_BYTES_MAX } from "../limits.ts";
import { EventFile } from "./event-file.ts";
import { GatherWait, isGathered } from "./gather-wait.ts";
import { GatheredOutputs, type OutputSource } from "./gathered-outputs.ts";
import { LogRoom } from "./log-room.ts";
import { LogSummary } from "./log-summary.ts";
import { PositionIndex } from "./position.ts";
import { type OutputSizes, ProcessOutputs } from "./process-outputs.ts";
import {
  FILE_MAGIC,
  HEADER_BYTES,
  OUTPUT_PAYLOAD_BYTES_MAX,
  PAYLOAD_BYTES_MAX,
  type RecordHead,
  sealRecord,
} from "./record.ts";
import { type Block, RecordBlocks, splitAt } from "./record-blocks.ts";
import type { ReopenedLog } from "./reopen.ts";
import { type OpenRing, SegmentCuts } from "./ring.ts";
import { WRITE_NOW_BYTES_MAX, WritePace } from "./write-pace.ts";

export interface EventWriterOptions {
  readonly path: string;
  /** ns since the epoch */
  readonly now: () => bigint;
  /** continues a ring, which drops its first events instead of being full; absent: a plain log is created */
  readonly ring?: OpenRing;
  /** continues a plain log instead */
  readonly log?: ReopenedLog;
  /** size of a plain log, in `bytes`, above which `isFull` is true, and output is dropped, first that of additional processes */
  readonly limitBytes?: number;
  /** called when more can be read, and when writing has failed */
  readonly onChange?: () => void;
}

/** The latest record, which further output of the same stream extends. */
interface OpenRecord {
  readonly head: RecordHead;
  readonly block: Block;
  readonly start: number;
}

/**
 * Writes an event log. Calls return at once; events are written in the order of the calls, several at
 * a time. Output that a stream produces during a write becomes one record. The first event creates the file. What bounds the queue
 * is the credit of the processes: they get it for output that is written.
 */
export class EventWriter {
  /** positions of some events */
  readonly index: PositionIndex;
  /** of the log until now, for a ring; of the earlier part of a plain log */
  readonly summary: LogSummary;
  readonly path: string;
  readonly #options: EventWriterOptions;
  readonly #cuts: SegmentCuts;
  readonly #room: LogRoom;
  readonly #failed = new AbortController();
  readonly #pace = new WritePace();
  #file: EventFile | null = null;
  readonly #blocks = new RecordBlocks();
  #open: OpenRecord | null = null;
  /** output that is not in a record yet */
  readonly #gathered = new GatheredOutputs();
  readonly #wait = new GatherWait();
  #nextId = 0;
  #latestNs = 0n;
  /** size of the log once the queue is written */
  #bytes = 0;
  #writtenBytes = 0;
  #isEnded = false;
  #hasOutput = false;
  #work: Promise<void> | null = null;
  #ending: Promise<void> | null = null;
  /** each resolves when its bytes are written, or writing has failed: those of the queue, and those of the present write */
  #queued: PromiseWithResolvers<void> | null = null;
  #writing: PromiseWithResolvers<void> | null = null;

  constructor(options: EventWriterOptions) {
    this.#options = options;
    this.path = options.path;
    const { ring, log } = options;
    this.#room = new LogRoom(ring === undefined ? (options.limitBytes ?? EVENT_LOG_BYTES_MAX) : Infinity, log?.summary);
    this.index = log?.index ?? new PositionIndex(ring?.file.starts);
    this.#cuts = new SegmentCuts(ring);
    const opened = log ?? ring;
    this.summary = opened?.summary ?? new LogSummary();
    if (opened === undefined) return;
    this.#file = opened.file;
    this.#nextId = opened.end.id;
    this.#bytes = opened.end.offset;
    this.#writtenBytes = this.#bytes;
  }

  /** Null before the first write to a plain log. It may be disposed of after `end`. */
  get file(): EventFile | null {
    return this.#file;
  }

  /** Id of the next event. The last one may still grow. */
  get nextId(): number {
    return this.#nextId;
  }

  /** Time of the latest event, in ns since the epoch; 0 before the first one of this writer. */
  get latestNs(): bigint {
    return this.#latestNs;
  }

  /** Size of the readable part, in `bytes`: whole records. */
  get writtenBytes(): number {
    return this.#writtenBytes;
  }

  /** Size of the part that is not written yet, in `bytes`. */
  get queuedBytes(): number {
    return this.#totalBytes - this.#writtenBytes;
  }

  /** True when a plain log has reached its size: only short events may follow. */
  get isFull(): boolean {
    return this.#room.isFull(this.#totalBytes);
  }

  /** Aborts with the cause when a write fails. Events are dropped from then on. */
  get failed(): AbortSignal {
    return this.#failed.signal;
  }

  /**
   * Appends an event, and returns its id; without effect after `end`.
   * @throws Error when `data` is longer than a record may be
   */
  append<Type extends DataEventType>(spid: number | null, type: Type, data: LogEventData[Type]): number {
    const payload = Buffer.from(JSON.stringify(data), "utf8");
    if (payload.byteLength > PAYLOAD_BYTES_MAX) throw new Error(`an event of ${payload.byteLength} bytes`);
    if (this.#isOver) return this.#nextId;
    this.#record();
    const record = this.#begin({ spid, type }, payload.byteLength);
    const { id } = record.head;
    payload.copy(record.block.bytes, record.block.used);
    this.#take(record.block, payload.byteLength);
    if (this.#options.ring !== undefined) this.summary.take({ ...record.head, payload });
    this.#seal();
    this.#schedule();
    this.#wait.hurry();
    return id;
  }

  /**
   * Opens the outputs of a process.
   * @param limitBytes limit of each of its two streams
   * @param isReserved true for the command: its outputs are part of the result, so other processes cannot use up their room
   * @param from sizes of the outputs that are already logged
   * @param isOpen false: output is dropped from then on
   */
  outputs(
    spid: number,
    limitBytes: number,
    isReserved = false,
    from?: OutputSizes,
    isOpen: () => boolean = () => true,
  ): ProcessOutputs {
    if (isReserved) this.#room.reserve(2 * limitBytes - (from?.stdout.kept ?? 0) - (from?.stderr.kept ?? 0));
    return new ProcessOutputs({
      limitBytes,
      from,
      append: (type, data) => {
        if (isOpen()) this.append(spid, type, data);
      },
      write: (stream, bytes) => (isOpen() ? this.#output({ spid, stream, isReserved }, bytes) : 0),
      written: () => this.#queued?.promise,
    });
  }

  /** Returns the next id: no event with a smaller one will change, and all later output gets it or a greater one. */
  cut(): number {
    this.#record();
    this.#seal();
    this.#wait.hurry();
    return this.#nextId;
  }

  /** Resolves when readers can read all events appended so far, or when writing has failed. */
  async written(): Promise<void> {
    this.#wait.hurry();
    await (this.#queued ?? this.#writing)?.promise;
  }

  /** Writes the queue. From then on its output survives a power failure. @throws the cause when a write failed */
  async flush(): Promise<void> {
    await this.written();
    this.#failed.signal.throwIfAborted();
    if (this.#hasOutput) await this.#file?.sync();
    this.#hasOutput = false;
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

  /** Number of records of the segment. */
  get #recordsCount(): number {
    return this.#cuts.recordsCount(this.#nextId);
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
    this.#wait.hurry();
    while (this.#work !== null) await this.#work;
    await this.flush();
  }

  /** Appends all of the output, or nothing when there is no room; returns the number of appended bytes. */
  #output(source: OutputSource, bytes: Uint8Array): number {
    if (this.#isOver || bytes.byteLength === 0) return 0;
    if (!this.#room.has(this.#totalBytes, bytes.byteLength, source.isReserved)) {
      const limitBytes = this.#room.cap();
      if (limitBytes !== null) this.append(0, "size_cap", { limit_bytes: limitBytes, file_size: this.#totalBytes });
      return 0;
    }
    if (source.isReserved) this.#room.useReserved(bytes.byteLength);
    this.#hasOutput = true;
    if (isGathered(this.#recordsCount)) this.#gathered.push(source, bytes);
    else this.#put(source, bytes);
    this.#schedule();
    // Processes get credit for what is written, so they must not wait for more output than fits a short write.
    if (this.#gathered.byteLength >= WRITE_NOW_BYTES_MAX / 2) this.#wait.hurry();
    return bytes.byteLength;
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
      if (this.#options.ring !== undefined) this.summary.addOutput(spid, stream, part.byteLength);
      rest = rest.subarray(part.byteLength);
    }
    if (isReserved) this.#room.useReservedHeaders(this.#bytes - before - bytes.byteLength);
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
    if (this.#bytes === 0 && this.#options.ring === undefined) {
      const block = this.#blocks.withRoom(FILE_MAGIC.byteLength);
      FILE_MAGIC.copy(block.bytes, block.used);
      this.#take(block, FILE_MAGIC.byteLength);
    }
    const block = this.#blocks.withRoom(HEADER_BYTES + payloadBytes);
    const start = block.used;
    const position = { id: this.#nextId, offset: this.#bytes };
    this.index.add(position);
    this.#cuts.add(position);
    this.#take(block, HEADER_BYTES);
    const timeNs = this.#options.now();
    this.#latestNs = timeNs;
    this.#open = { head: { ...head, id: this.#nextId++, timeNs }, block, start };
    return this.#open;
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

  #schedule(): void {
    this.#queued ??= Promise.withResolvers();
    this.#work ??= Promise.resolve().then(() => this.#write());
  }

  /** Writes until the queue is empty. */
  async #write(): Promise<void> {
    try {
      while (this.queuedBytes > 0) {
        if (isGathered(this.#recordsCount) && !this.#isEnded) await this.#wait.more(this.#recordsCount, this.isFull);
        await this.#writeOnce();
      }
    } catch (error) {
      await this.#fail(error);
    }
    this.#work = null;
  }

  async #writeOnce(): Promise<void> {
    this.#file ??= await EventFile.create(this.path);
    this.#record();
    this.#seal();
    const waiting = this.#blocks.take();
    this.#writing = this.#queued;
    this.#queued = null;
    let { pieces } = waiting;
    for (const cut of this.#cuts.take()) {
      const [before, after] = splitAt(pieces, cut.start.offset - this.#writtenBytes);
      await this.#writePieces(this.#file, before);
      await this.#cuts.cut(this.#file, cut);
      this.index.forgetBefore(this.#file.first);
      pieces = after;
    }
    const writing = this.#writePieces(this.#file, pieces);
    if (writing !== undefined) await writing;
    waiting.release();
    this.#writing?.resolve();
    this.#writing = null;
    this.#options.onChange?.();
  }

  /** Writes to the segment. Returns a promise only when it must wait for a thread. */
  #writePieces(file: EventFile, pieces: readonly Uint8Array[]): Promise<void> | undefined {
    const bytes = pieces.reduce((sum, { byteLength }) => sum + byteLength, 0);
    const position = this.#writtenBytes;
    if (bytes === 0) return undefined;
    if (!this.#pace.allows(bytes)) {
      return file.write(pieces, position).then(() => {
        this.#writtenBytes += bytes;
      });
    }
    this.#pace.time(() => file.writeNow(pieces, position));
    this.#writtenBytes += bytes;
    return undefined;
  }

  /** Drops the queue. */
  async #fail(error: unknown): Promise<void> {
    this.#open = null;
    this.#blocks.clear();
    this.#cuts.take();
    this.#gathered.drain(() => undefined);
    this.#bytes = this.#writtenBytes;
    this.#failed.abort(storageFull(error) ?? error);
    for (const reported of [this.#writing, this.#queued]) reported?.resolve();
    this.#writing = null;
    this.#queued = null;
    // Part of the failed write may be in the file.
    await this.#file?.truncate(this.#writtenBytes).catch(() => undefined);
    this.#options.onChange?.();
  }
}
