import { ftruncate, open, openSync, read, readdirSync, readSync, statSync, writev, writevSync } from "node:fs";
import { copyFile, link, mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { promisify } from "node:util";
import { type LogId, parseUuid } from "../../domain/ids.ts";
import { syncPath } from "../../system/scratch.ts";
import { type DataLayout, nameBatches } from "../layout.ts";
import { type EventPosition, FIRST_POSITION } from "./position.ts";
import { Segment } from "./segment.ts";

const openFile = promisify(open);
const readAt = promisify(read);
const truncateTo = promisify(ftruncate);
const writeAll = promisify(writev);

/** The name of a segment: the offset and the id of its first event. */
const SEGMENT_NAME = /^(\d{16})-(\d{16})$/;
const digits = (count: number): string => String(count).padStart(16, "0");
const START: EventPosition = { id: 0, offset: 0 };
/** The note of a ring, next to its segments. */
const NOTE_NAME = "note";

/** Path of an event log; a log without events has none. */
export function eventLogPath(layout: DataLayout, id: LogId): string {
  return join(layout.events, id);
}

interface OpenSegment {
  readonly segment: Segment;
  readonly fd: number;
}

/**
 * The open files of an event log, for its writer and for any number of readers. A plain log is one file. A ring is a
 * directory of segments, of which the first ones are dropped. Either is one sequence of bytes, in which positions stay valid;
 * no record lies in two segments.
 */
export class EventFile implements Disposable {
  readonly #path: string;
  readonly #segments: Segment[];
  /** the last segment, with a descriptor that stays open; null until a ring is written to */
  #last: OpenSegment | null = null;
  /** paths of the segments that were written to since the last flush */
  readonly #unsynced = new Set<string>();
  #isOpen = true;

  private constructor(path: string, segments: Segment[] = []) {
    this.#path = path;
    this.#segments = segments;
  }

  /** Creates a plain log. An existing one is emptied: it belongs to a start of the operation that a power failure undid. */
  static async create(path: string): Promise<EventFile> {
    return EventFile.#plain(path, await openFile(path, "w+", 0o600));
  }

  /** Opens a plain log for its next writer; null when there is none. */
  static async reopen(path: string): Promise<EventFile | null> {
    try {
      return EventFile.#plain(path, await openFile(path, "r+"));
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== "ENOENT" && code !== "EISDIR") throw error;
      return null;
    }
  }

  /** Opens a log for readers; null when there is none. */
  static open(path: string): EventFile | null {
    const status = statSync(path, { throwIfNoEntry: false });
    if (status === undefined) return null;
    return status.isDirectory() ? EventFile.ring(path) : EventFile.#plain(path, openSync(path, "r"));
  }

  static #plain(path: string, fd: number): EventFile {
    const file = new EventFile(path);
    file.#append(path, FIRST_POSITION, 0, fd);
    return file;
  }

  /** Opens a ring, which need not exist yet. What precedes a missing or short segment is not part of it. */
  static ring(path: string): EventFile {
    const all = segmentsOf(path);
    const isCut = ({ base, sizeBytes }: Segment, at: number) =>
      base + sizeBytes !== (all[at + 1]?.base ?? base + sizeBytes);
    return new EventFile(path, all.slice(all.findLastIndex(isCut) + 1));
  }

  /** Position of the first event that the log still has. */
  get first(): EventPosition {
    return this.#segments[0]?.start ?? START;
  }

  /** True when a ring has no segment yet. */
  get isEmpty(): boolean {
    return this.#segments.length === 0;
  }

  /** Positions of the first events of its segments, at least one. */
  get starts(): readonly EventPosition[] {
    return this.#segments.length === 0 ? [START] : this.#segments.map(({ start }) => start);
  }

  /** Offset of its end, in `bytes`. */
  get sizeBytes(): number {
    const last = this.#segments.at(-1);
    return last === undefined ? 0 : last.base + last.sizeBytes;
  }

  /** The next position at which reading can continue when `position` is dropped or damaged; null: there is none yet. */
  after({ offset }: EventPosition): EventPosition | null {
    return this.#segments.find(({ start }) => start.offset > offset)?.start ?? null;
  }

  /** Fills `buffer` from `position`, up to the end of the segment; returns the number of bytes, 0 when it is dropped. */
  async read(buffer: Buffer, position: number): Promise<number> {
    const segment = this.#at(position);
    using file = segment?.open();
    if (segment === undefined || file == null) return 0;
    for (let filled = 0; ; ) {
      const at = position - segment.base + filled;
      const { bytesRead } = await readAt(file.fd, buffer, filled, buffer.byteLength - filled, at);
      filled += bytesRead;
      if (bytesRead === 0 || filled === buffer.byteLength) return filled;
    }
  }

  /** The same synchronously, for data in the page cache: a thread would take ten times as long. */
  readNow(buffer: Buffer, position: number): number {
    const segment = this.#at(position);
    using file = segment?.open();
    if (segment === undefined || file == null) return 0;
    for (let filled = 0; ; ) {
      const at = position - segment.base + filled;
      const bytesRead = readSync(file.fd, buffer, filled, buffer.byteLength - filled, at);
      filled += bytesRead;
      if (bytesRead === 0 || filled === buffer.byteLength) return filled;
    }
  }

  /** Writes all pieces, one after another, to the last segment. */
  async write(pieces: readonly Uint8Array[], position: number): Promise<void> {
    const { fd, segment } = this.#writable();
    let rest = pieces;
    for (let at = position - segment.base; rest.length > 0; ) {
      const { bytesWritten } = await writeAll(fd, rest as Uint8Array[], at);
      at += bytesWritten;
      rest = behind(rest, bytesWritten);
    }
  }

  /** The same synchronously: a small write to the page cache takes less time than a thread takes to begin. */
  writeNow(pieces: readonly Uint8Array[], position: number): void {
    const { fd, segment } = this.#writable();
    let rest = pieces;
    for (let at = position - segment.base; rest.length > 0; ) {
      const bytesWritten = writevSync(fd, rest as Uint8Array[], at);
      at += bytesWritten;
      rest = behind(rest, bytesWritten);
    }
  }

  /** Cuts the last segment at an offset of the log, in `bytes`. */
  async truncate(sizeBytes: number): Promise<void> {
    const { fd, segment } = this.#writable();
    await truncateTo(fd, sizeBytes - segment.base);
  }

  /** Continues a ring at its end: cuts what follows, and removes files that are not part of it. */
  async resume({ offset }: EventPosition): Promise<void> {
    const paths = this.#segments.map(({ path }) => path);
    for (const { path } of segmentsOf(this.#path)) if (!paths.includes(path)) await rm(path, { force: true });
    const last = this.#segments.at(-1);
    if (last === undefined) return;
    const { path, start, base } = last;
    const fd = await openFile(path, "r+");
    // Readers always find the segment.
    this.#segments.pop();
    this.#append(path, start, base, fd);
    await this.truncate(offset);
  }

  /**
   * Begins a segment of a ring at its end, and drops the first ones.
   * @param keptBytes largest size of the segments before it that remain
   */
  async begin(start: EventPosition, keptBytes: number): Promise<void> {
    await mkdir(this.#path, { recursive: true, mode: 0o700 });
    const path = join(this.#path, `${digits(start.offset)}-${digits(start.id)}`);
    this.#append(path, start, start.offset, await openFile(path, "w+", 0o600));
    while (start.offset - this.first.offset > keptBytes) {
      const dropped = this.#segments.shift();
      if (dropped === undefined) return;
      this.#unsynced.delete(dropped.path);
      await rm(dropped.path, { force: true });
    }
  }

  /** The note of a ring; null when it has none. */
  async note(): Promise<string | null> {
    try {
      return await readFile(join(this.#path, NOTE_NAME), "utf8");
    } catch (error) {
      ignoreMissing(error);
      return null;
    }
  }

  /** Replaces the note of a ring. It need not survive a power failure. */
  async setNote(text: string): Promise<void> {
    const path = join(this.#path, NOTE_NAME);
    await writeFile(`${path}.new`, text, { mode: 0o600 });
    await rename(`${path}.new`, path);
  }

  /** Flushes what was written, and its directory entries, to the disk. */
  async sync(): Promise<void> {
    const paths = [...this.#unsynced];
    this.#unsynced.clear();
    // More can be written to the last one.
    for (const path of paths.slice(-1)) this.#unsynced.add(path);
    const directories = [...paths, this.#path].map((path) => dirname(path));
    // A segment can be dropped meanwhile.
    for (const path of new Set([...paths, ...directories])) await syncPath(path).catch(ignoreMissing);
  }

  /** Idempotent. No read or write may be under way. */
  [Symbol.dispose](): void {
    if (this.#isOpen) this.#last?.segment.close();
    this.#isOpen = false;
  }

  /** Adds the last segment, whose descriptor stays open. */
  #append(path: string, start: EventPosition, base: number, fd: number): void {
    const segment = new Segment(path, start, base, fd);
    this.#segments.push(segment);
    this.#last?.segment.close();
    this.#last = { segment, fd };
    this.#unsynced.add(path);
  }

  /** @throws Error when a ring has no segment yet */
  #writable(): OpenSegment {
    if (this.#last === null) throw new Error("the log is not open for writing");
    return this.#last;
  }

  #at(position: number): Segment | undefined {
    return this.#segments.findLast(({ base }) => base <= position);
  }
}
/** The pieces without their first `bytes`. */
function behind(pieces: readonly Uint8Array[], bytes: number): Uint8Array[] {
  let skipped = bytes;
  return pieces.flatMap((piece) => {
    const rest = piece.subarray(Math.min(skipped, piece.byteLength));
    skipped -= piece.byteLength - rest.byteLength;
    return rest.byteLength > 0 ? [rest] : [];
  });
}

/** The segments of a ring, in their order. */
function segmentsOf(path: string): Segment[] {
  return namesIn(path)
    .flatMap((name) => {
      const [, offset, id] = SEGMENT_NAME.exec(name) ?? [];
      if (offset === undefined || id === undefined) return [];
      const start = { id: Number(id), offset: Number(offset) };
      return [new Segment(join(path, name), start, start.offset)];
    })
    .sort((one, other) => one.base - other.base);
}

function namesIn(directory: string): string[] {
  try {
    return readdirSync(directory);
  } catch (error) {
    ignoreMissing(error);
    return [];
  }
}

function ignoreMissing(error: unknown): void {
  const { code } = error as NodeJS.ErrnoException;
  if (code !== "ENOENT" && code !== "ENOTDIR") throw error;
}

/**
 * Gives the files of a log, if it has any, names in another data directory on the same disk. The last segment of a ring is copied, because
 * it may grow.
 */
export async function linkEventLog(layout: DataLayout, target: DataLayout, id: LogId): Promise<void> {
  const [from, to] = [eventLogPath(layout, id), eventLogPath(target, id)];
  const status = statSync(from, { throwIfNoEntry: false });
  if (status === undefined) return;
  if (!status.isDirectory()) return await link(from, to);
  await mkdir(to, { mode: 0o700 });
  const [last, ...others] = segmentsOf(from)
    .map(({ path }) => [path, join(to, basename(path))] as const)
    .toReversed();
  if (last !== undefined) await copyFile(...last);
  // The first segments can be dropped meanwhile.
  for (const other of others) await link(...other).catch(ignoreMissing);
}

export async function removeEventLog(layout: DataLayout, id: LogId): Promise<void> {
  await rm(eventLogPath(layout, id), { recursive: true, force: true });
}

/**
 * Removes the logs whose owners have no row. No operation may run meanwhile.
 * @param existing returns the subset of the ids that have a row
 * @throws the reason of `signal`
 */
export async function sweepEventLogs(
  layout: DataLayout,
  existing: (ids: readonly LogId[]) => ReadonlySet<string>,
  signal: AbortSignal,
): Promise<void> {
  for await (const names of nameBatches(layout.events)) {
    signal.throwIfAborted();
    const ids = names.map((name) => parseUuid<LogId>(name)).filter((id) => id !== null);
    const rows = existing(ids);
    for (const id of ids) if (!rows.has(id)) await removeEventLog(layout, id);
  }
}
