import { statSync } from "node:fs";
import { ApiError } from "../domain/errors.ts";
import type { Log } from "../log.ts";
import { fileShortage, freeSpace } from "../storage/free-space.ts";
import { BLOCK_BYTES } from "../system/sparse.ts";
import { sleepUnlessAborted } from "../system/waiting.ts";

/**
 * The fastest that all writers together fill a disk: memory is not much faster, and data is allocated when it is in the
 * page cache. What is left above the reserve cannot be used up before the next look.
 */
const FILL_BYTES_PER_MS = 8_589_935;
/** Between looks: at full speed a sixth of the default reserve is written in the shortest time. */
const LOOK_MS_MIN = 20;
const LOOK_MS_MAX = 1000;
/** Who has written lately is told by samples, one in this time. */
const SAMPLE_MS = 1000;
const SAMPLES_COUNT = 10;
/** Writers that grew by less than this share of what the one that grew most did are not what fills the disk. */
const GROWTH_RATIO = 1 / 8;
/** Work that holds less than this share of the reserve may end on it: that is what the reserve is for. */
const HELD_RATIO = 1 / 4;
/** However large the reserve is, so much is more than its share. */
const HELD_BYTES_MAX = 268_435_456;
/** And work that lately took less than this share of what is left. */
const TAKEN_RATIO = 1 / 4;
/** A file system may free what was removed a little later. */
const FREED_MS = 1000;
/** How long new work waits for room that is being given back. */
const SETTLE_MS_MAX = 10_000;
/** A large tree is not counted while a disk fills up: what was last known has to do. */
const COUNT_MS_MAX = 300;

/** What somebody writes that knows no reserve. Until disposal its room counts as its own. */
export interface DiskUse extends Disposable {
  /** fires when the room has to be given back, with an ApiError `insufficient_storage` as the reason */
  readonly full: AbortSignal;
  /** Counts what a file grows by from now on; it need not exist yet. */
  add(path: string): void;
  /** Counts a directory as well, by a function that gives its `bytes`; it is called only when the disk is nearly full. */
  addTree(count: (limitMs: number) => Promise<number>): void;
}

export interface DiskUser {
  /** for the log and the error: what was ended */
  readonly name: string;
  /** Nobody waits for its result: it goes before everybody else. */
  readonly isSpare?: boolean;
}

export interface DiskGuardOptions {
  /** on the file system that is guarded */
  readonly directory: string;
  /** room that has to be left, in `bytes` */
  readonly reserveBytes: number;
  readonly log: Log;
  /** room that is left, in `bytes`; default is what the file system says */
  readonly room?: () => number;
}

interface Writer {
  readonly user: DiskUser;
  readonly full: AbortController;
  /** size of each file when it was added, in `bytes` */
  readonly files: Map<string, number>;
  /** what was used a sample ago, two, and so on */
  readonly samples: number[];
  countTree: ((limitMs: number) => Promise<number>) | null;
  treeBytes: number;
  usedBytes: number;
  hasEnded: boolean;
  /** when it was disposed of, in the time of `performance.now()`; null before that */
  goneAtMs: number | null;
}

/**
 * Keeps the reserve of the disk free while guests and programs write to it that know nothing of it. As long as there is a
 * writer it looks at the room, the more often the less there is. Below the reserve it ends the writer that has written
 * most of those that go on writing, waits for its room, and looks again; the others do not notice.
 */
export class DiskGuard implements Disposable {
  readonly #options: DiskGuardOptions;
  readonly #writers = new Set<Writer>();
  #timer: Timer | null = null;
  #sampledAtMs = 0;
  /** room when a writer was last ended */
  #roomAtEndBytes = Number.POSITIVE_INFINITY;

  constructor(options: DiskGuardOptions) {
    this.#options = options;
  }

  watch(user: DiskUser): DiskUse {
    const writer: Writer = {
      user,
      full: new AbortController(),
      files: new Map(),
      samples: [],
      countTree: null,
      treeBytes: 0,
      usedBytes: 0,
      hasEnded: false,
      goneAtMs: null,
    };
    this.#writers.add(writer);
    if (this.#timer === null) this.#lookIn(0);
    return {
      full: writer.full.signal,
      add: (path) => void writer.files.set(path, allocatedNow(path)),
      addTree: (count) => {
        writer.countTree = count;
      },
      [Symbol.dispose]: () => {
        writer.goneAtMs = performance.now();
        if (!writer.hasEnded) this.#writers.delete(writer);
      },
    };
  }

  /** Waits for room that is being given back, within bounds. */
  async settled(signal: AbortSignal): Promise<void> {
    const deadlineMs = performance.now() + SETTLE_MS_MAX;
    while (!signal.aborted && performance.now() < deadlineMs && [...this.#writers].some(isReturning)) {
      await sleepUnlessAborted(LOOK_MS_MIN, signal);
    }
  }

  [Symbol.dispose](): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#writers.clear();
  }

  #room(): number {
    const { room, directory } = this.#options;
    return room === undefined ? freeSpace(directory) : room();
  }

  #lookIn(ms: number): void {
    this.#timer = setTimeout(() => {
      void this.#look().catch((error: unknown) => {
        this.#options.log.error("the room on the disk is not known", { error });
        if (this.#timer !== null) this.#lookIn(LOOK_MS_MAX);
      });
    }, ms);
    this.#timer.unref();
  }

  async #look(): Promise<void> {
    const { reserveBytes } = this.#options;
    for (const writer of this.#writers) if (writer.hasEnded && !isReturning(writer)) this.#writers.delete(writer);
    const roomBytes = this.#room();
    this.#sample();
    this.#endTreesWithoutFiles();
    if (roomBytes < reserveBytes) await this.#relieve(roomBytes);
    if (this.#timer === null) return;
    if (this.#writers.size === 0) this.#timer = null;
    else {
      const ms = (this.#room() - reserveBytes) / FILL_BYTES_PER_MS;
      this.#lookIn(Math.min(LOOK_MS_MAX, Math.max(LOOK_MS_MIN, ms)));
    }
  }

  #sample(): void {
    const now = performance.now();
    if (now - this.#sampledAtMs < SAMPLE_MS) return;
    this.#sampledAtMs = now;
    for (const writer of this.#writers) {
      measure(writer);
      writer.samples.unshift(writer.usedBytes);
      writer.samples.length = Math.min(writer.samples.length, SAMPLES_COUNT);
    }
  }

  /** Guests make no files on the host; programs that unpack trees do. */
  #endTreesWithoutFiles(): void {
    const trees = [...this.#writers].filter(({ countTree, hasEnded }) => countTree !== null && !hasEnded);
    const shortage = trees.length === 0 ? null : fileShortage(this.#options.directory);
    if (shortage !== null) for (const writer of trees) this.#end(writer, shortage);
  }

  async #relieve(roomBytes: number): Promise<void> {
    const { reserveBytes, log } = this.#options;
    for (const writer of this.#writers) measure(writer);
    const missingBytes = reserveBytes - roomBytes - totalBytes([...this.#writers].filter(isReturning));
    if (missingBytes <= 0 && !this.#isFalling(roomBytes)) return;
    const victim = await this.#victim(roomBytes, missingBytes);
    if (victim === null) return;
    this.#roomAtEndBytes = roomBytes;
    const details = { reserve_bytes: reserveBytes, used_bytes: victim.usedBytes };
    log.warn("the disk is nearly full: what has written most was ended", { ...details, name: victim.user.name });
    const message = `the disk of the service is nearly full, and this had written most: ${victim.usedBytes} bytes`;
    this.#end(victim, new ApiError("insufficient_storage", message, details));
  }

  /** True when others take what is left while the room of those that were ended is being given back. */
  #isFalling(roomBytes: number): boolean {
    return roomBytes < this.#options.reserveBytes / 2 && roomBytes < this.#roomAtEndBytes * (1 - GROWTH_RATIO);
  }

  /** Who has to go, or null where that would not help. */
  async #victim(roomBytes: number, missingBytes: number): Promise<Writer | null> {
    const helps = (writers: readonly Writer[]): boolean => {
      const takenBytes = writers.reduce((sum, writer) => sum + grownBytes(writer), 0);
      if (takenBytes > TAKEN_RATIO * roomBytes) return true;
      const heldBytes = Math.min(HELD_BYTES_MAX, HELD_RATIO * this.#options.reserveBytes);
      return missingBytes > 0 && totalBytes(writers) >= Math.max(missingBytes, heldBytes);
    };
    const live = [...this.#writers].filter(({ hasEnded }) => !hasEnded);
    if (helps(live)) return largestWriter(live);
    await Promise.all(live.map(lookIntoTree));
    const left = live.filter(({ goneAtMs }) => goneAtMs === null);
    return helps(left) ? largestWriter(left) : null;
  }

  #end(writer: Writer, error: ApiError): void {
    writer.hasEnded = true;
    writer.full.abort(error);
  }
}

/** Who goes: what nobody waits for; of the others who went on writing, the one that has written most. */
function largestWriter(live: readonly Writer[]): Writer | null {
  const written = live.filter(({ usedBytes }) => usedBytes > 0);
  const spare = written.filter(({ user }) => user.isSpare === true);
  const mostBytes = Math.max(0, ...written.map(grownBytes));
  const growing = written.filter((writer) => mostBytes > 0 && grownBytes(writer) >= GROWTH_RATIO * mostBytes);
  const [candidates = []] = [spare, growing, written].filter(({ length }) => length > 0);
  return candidates.reduce<Writer | null>((a, b) => (a !== null && a.usedBytes >= b.usedBytes ? a : b), null);
}

function isReturning({ hasEnded, goneAtMs }: Writer): boolean {
  return hasEnded && (goneAtMs === null || performance.now() - goneAtMs < FREED_MS);
}

/** What it has written within the last samples; all of it where there is none yet. */
function grownBytes({ samples, usedBytes }: Writer): number {
  return usedBytes - (samples.at(-1) ?? 0);
}

function totalBytes(writers: readonly Writer[]): number {
  return writers.reduce((sum, { usedBytes }) => sum + usedBytes, 0);
}

/** What gives its room back keeps its size until that counts as free. */
function measure(writer: Writer): void {
  if (writer.goneAtMs !== null) return;
  let bytes = writer.treeBytes;
  for (const [path, before] of writer.files) bytes += Math.max(0, allocatedNow(path) - before);
  writer.usedBytes = writer.hasEnded ? Math.max(writer.usedBytes, bytes) : bytes;
}

async function lookIntoTree(writer: Writer): Promise<void> {
  if (writer.countTree === null) return;
  writer.treeBytes = await writer.countTree(COUNT_MS_MAX).catch(() => writer.treeBytes);
  measure(writer);
}

/** Takes microseconds, however large the file is. */
function allocatedNow(path: string): number {
  return (statSync(path, { throwIfNoEntry: false })?.blocks ?? 0) * BLOCK_BYTES;
}
