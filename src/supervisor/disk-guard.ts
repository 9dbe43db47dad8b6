import { statSync } from "node:fs";
import { ApiError } from "../domain/errors.ts";
import type { Log } from "../log.ts";
import { freeSpace, inodeShortage } from "../storage/free-space.ts";
import { BLOCK_BYTES } from "../system/sparse.ts";
import { sleepUnlessAborted } from "../system/waiting.ts";

/**
 * The fastest rate at which all writers together can fill the disk. Data is allocated when it enters the page cache, and
 * memory is not much faster than this. The next check comes before that rate could reach the reserve.
 */
const FILL_BYTES_PER_MS = 8_589_935;
/** Interval between checks. In the shortest, the fastest writers fill a sixth of the default reserve. */
const CHECK_MS_MIN = 20;
const CHECK_MS_MAX = 1000;
/** Interval between samples of each writer's size; they show which writers have written lately. */
const SAMPLE_MS = 1000;
const SAMPLES_COUNT = 10;
/** A writer that grew by less than this share of the growth of the fastest one does not fill the disk. */
const GROWTH_RATIO = 1 / 8;
/** Writers that hold less than this share of the reserve may use it to finish: that is its purpose. */
const HELD_RATIO = 1 / 4;
/** Upper bound of that share, for large reserves. */
const HELD_BYTES_MAX = 268_435_456;
/** Writers that lately used less than this share of the free space may finish, too. */
const GROWN_RATIO = 1 / 4;
/** A file system may free the space of a removed file with a delay. */
const FREED_MS = 1000;
/** Longest time that new work waits for space that is being freed. */
const SETTLE_MS_MAX = 10_000;
/** Longest time to measure a tree while the disk fills up; after that its last known size is used. */
const COUNT_MS_MAX = 300;

/** The disk space of one writer that does not check the reserve itself. It counts until it is disposed. */
export interface DiskUse extends Disposable {
  /** fires when the writer must stop and free its space; the reason is an ApiError `insufficient_storage` */
  readonly full: AbortSignal;
  /** Counts the growth of a file from now on; it need not exist yet. */
  add(path: string): void;
  /** Counts a directory, too. `count` returns its size in `bytes`; it is called only when the disk is nearly full. */
  addTree(count: (limitMs: number) => Promise<number>): void;
}

export interface DiskUser {
  /** name of the work, for the log and the error */
  readonly name: string;
  /** true when no client waits for the result: the work is ended before other writers */
  readonly isExpendable?: boolean;
}

export interface DiskGuardOptions {
  /** a directory on the guarded file system */
  readonly directory: string;
  /** space that must stay free, in `bytes` */
  readonly reserveBytes: number;
  readonly log: Log;
  /** free space in `bytes`; the default asks the file system */
  readonly freeBytes?: () => number;
}

interface Writer {
  readonly user: DiskUser;
  readonly full: AbortController;
  /** size of each file when it was added, in `bytes` */
  readonly files: Map<string, number>;
  /** earlier values of `usedBytes`, the latest first */
  readonly samples: number[];
  countTree: ((limitMs: number) => Promise<number>) | null;
  treeBytes: number;
  usedBytes: number;
  hasEnded: boolean;
  /** time of the disposal, by `performance.now()`; null before it */
  disposedAtMs: number | null;
}

/**
 * Keeps the disk's reserve free while guests, and programs that do not check the reserve themselves, write to the disk.
 * While there are writers, it checks the free space, more often when less is left. Below the reserve, it ends the writer
 * that has written most, of those that still grow. It waits for the space of that writer, and checks again.
 */
export class DiskGuard implements Disposable {
  readonly #options: DiskGuardOptions;
  readonly #writers = new Set<Writer>();
  #timer: Timer | null = null;
  #sampledAtMs = 0;
  /** free space when a writer was last ended */
  #freeAtEndBytes = Number.POSITIVE_INFINITY;

  constructor(options: DiskGuardOptions) {
    this.#options = options;
  }

  /** Watches the space of a writer until the result is disposed. */
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
      disposedAtMs: null,
    };
    this.#writers.add(writer);
    if (this.#timer === null) this.#checkIn(0);
    return {
      full: writer.full.signal,
      add: (path) => void writer.files.set(path, allocatedNow(path)),
      addTree: (count) => {
        writer.countTree = count;
      },
      [Symbol.dispose]: () => {
        writer.disposedAtMs = performance.now();
        if (!writer.hasEnded) this.#writers.delete(writer);
      },
    };
  }

  /** Waits until no ended writer still frees its space, for a bounded time, or until `signal` fires. */
  async settled(signal: AbortSignal): Promise<void> {
    const deadlineMs = performance.now() + SETTLE_MS_MAX;
    while (!signal.aborted && performance.now() < deadlineMs && [...this.#writers].some(isFreeing)) {
      await sleepUnlessAborted(CHECK_MS_MIN, signal);
    }
  }

  [Symbol.dispose](): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#writers.clear();
  }

  #freeBytes(): number {
    const { freeBytes, directory } = this.#options;
    return freeBytes === undefined ? freeSpace(directory) : freeBytes();
  }

  #checkIn(ms: number): void {
    this.#timer = setTimeout(() => {
      void this.#check().catch((error: unknown) => {
        this.#options.log.error("cannot check the free disk space", { error });
        if (this.#timer !== null) this.#checkIn(CHECK_MS_MAX);
      });
    }, ms);
    this.#timer.unref();
  }

  async #check(): Promise<void> {
    const { reserveBytes } = this.#options;
    for (const writer of this.#writers) if (writer.hasEnded && !isFreeing(writer)) this.#writers.delete(writer);
    const freeBytes = this.#freeBytes();
    this.#sample();
    this.#endTreesWithoutFiles();
    if (freeBytes < reserveBytes) await this.#relieve(freeBytes);
    if (this.#timer === null) return;
    if (this.#writers.size === 0) this.#timer = null;
    else {
      const ms = (this.#freeBytes() - reserveBytes) / FILL_BYTES_PER_MS;
      this.#checkIn(Math.min(CHECK_MS_MAX, Math.max(CHECK_MS_MIN, ms)));
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

  /** Ends the programs that unpack trees when the file system runs out of files. Guests create no files on the host. */
  #endTreesWithoutFiles(): void {
    const trees = [...this.#writers].filter(({ countTree, hasEnded }) => countTree !== null && !hasEnded);
    const shortage = trees.length === 0 ? null : inodeShortage(this.#options.directory);
    if (shortage !== null) for (const writer of trees) this.#end(writer, shortage);
  }

  async #relieve(freeBytes: number): Promise<void> {
    const { reserveBytes, log } = this.#options;
    for (const writer of this.#writers) measure(writer);
    const missingBytes = reserveBytes - freeBytes - totalBytes([...this.#writers].filter(isFreeing));
    if (missingBytes <= 0 && !this.#isFalling(freeBytes)) return;
    const victim = await this.#victim(freeBytes, missingBytes);
    if (victim === null) return;
    this.#freeAtEndBytes = freeBytes;
    const details = { reserve_bytes: reserveBytes, used_bytes: victim.usedBytes };
    log.warn("the disk is nearly full: ended the work that wrote most", { ...details, name: victim.user.name });
    const message = `the disk of the service is nearly full, and this work had written most: ${victim.usedBytes} bytes`;
    this.#end(victim, new ApiError("insufficient_storage", message, details));
  }

  /** True when other writers fill the remaining space faster than ended ones free theirs. */
  #isFalling(freeBytes: number): boolean {
    return freeBytes < this.#options.reserveBytes / 2 && freeBytes < this.#freeAtEndBytes * (1 - GROWTH_RATIO);
  }

  /** The writer to end; null when ending one would not help. */
  async #victim(freeBytes: number, missingBytes: number): Promise<Writer | null> {
    const helps = (writers: readonly Writer[]): boolean => {
      const growthBytes = writers.reduce((sum, writer) => sum + grownBytes(writer), 0);
      if (growthBytes > GROWN_RATIO * freeBytes) return true;
      const heldBytes = Math.min(HELD_BYTES_MAX, HELD_RATIO * this.#options.reserveBytes);
      return missingBytes > 0 && totalBytes(writers) >= Math.max(missingBytes, heldBytes);
    };
    const live = [...this.#writers].filter(({ hasEnded }) => !hasEnded);
    if (helps(live)) return largestWriter(live);
    await Promise.all(live.map(measureTree));
    const left = live.filter(({ disposedAtMs }) => disposedAtMs === null);
    return helps(left) ? largestWriter(left) : null;
  }

  #end(writer: Writer, error: ApiError): void {
    writer.hasEnded = true;
    writer.full.abort(error);
  }
}

/** The largest expendable writer; when there is none, the largest of those that still grow; then of all. */
function largestWriter(live: readonly Writer[]): Writer | null {
  const written = live.filter(({ usedBytes }) => usedBytes > 0);
  const expendable = written.filter(({ user }) => user.isExpendable === true);
  const mostBytes = Math.max(0, ...written.map(grownBytes));
  const growing = written.filter((writer) => mostBytes > 0 && grownBytes(writer) >= GROWTH_RATIO * mostBytes);
  const [candidates = []] = [expendable, growing, written].filter(({ length }) => length > 0);
  return candidates.reduce<Writer | null>((a, b) => (a !== null && a.usedBytes >= b.usedBytes ? a : b), null);
}

function isFreeing({ hasEnded, disposedAtMs }: Writer): boolean {
  return hasEnded && (disposedAtMs === null || performance.now() - disposedAtMs < FREED_MS);
}

/** Bytes written since the oldest sample; all bytes when there is no sample yet. */
function grownBytes({ samples, usedBytes }: Writer): number {
  return usedBytes - (samples.at(-1) ?? 0);
}

function totalBytes(writers: readonly Writer[]): number {
  return writers.reduce((sum, { usedBytes }) => sum + usedBytes, 0);
}

/** An ended or disposed writer keeps its size until its space counts as free. */
function measure(writer: Writer): void {
  if (writer.disposedAtMs !== null) return;
  let bytes = writer.treeBytes;
  for (const [path, before] of writer.files) bytes += Math.max(0, allocatedNow(path) - before);
  writer.usedBytes = writer.hasEnded ? Math.max(writer.usedBytes, bytes) : bytes;
}

async function measureTree(writer: Writer): Promise<void> {
  if (writer.countTree === null) return;
  writer.treeBytes = await writer.countTree(COUNT_MS_MAX).catch(() => writer.treeBytes);
  measure(writer);
}

/** Allocated size of a file in `bytes`; 0 when it is missing. This takes microseconds for a file of any size. */
function allocatedNow(path: string): number {
  return (statSync(path, { throwIfNoEntry: false })?.blocks ?? 0) * BLOCK_BYTES;
}
