import type { GrepBound, GrepCase } from "../../domain/tree/grep.ts";
import { type ByteString, displayName, type GuestPath } from "../../domain/tree/guest-path.ts";
import {
  GREP_BYTES_MAX,
  GREP_ENTRIES_COUNT_MAX,
  GREP_LINE_BYTES_MAX,
  GREP_MS_MAX,
  GREP_TEST_WORK_MAX,
  OPEN_LAYERS_COUNT_MAX,
} from "../limits.ts";
import type { Cancellation } from "../pacer.ts";
import { extentChunks } from "./extent-stream.ts";
import { FileSearch } from "./file-search.ts";
import { ImageTree, type ResolvedEntry, type WalkedEntry } from "./image-tree.ts";
import { LinePattern } from "./line-pattern.ts";
import { type LinePart, LineReader } from "./line-reader.ts";
import { NameFilter } from "./name-filter.ts";
import { type LayerFiles, OpenLayers } from "./open-layers.ts";
import { LinePacker, type PackedLines } from "./packed-lines.ts";

/** A file is binary when one of its first `bytes` is NUL. */
const BINARY_PROBE_BYTES = 8192;

/** Limits of a search; tests lower them. */
export interface GrepLimits {
  readonly bytesMax: number;
  readonly entriesCountMax: number;
  readonly lineBytesMax: number;
  readonly msMax: number;
}

const GREP_LIMITS: GrepLimits = {
  bytesMax: GREP_BYTES_MAX,
  entriesCountMax: GREP_ENTRIES_COUNT_MAX,
  lineBytesMax: GREP_LINE_BYTES_MAX,
  msMax: GREP_MS_MAX,
};

/** A search, as plain values that can be sent to a thread. */
export interface GrepRequest {
  /** layers of the image, lowest first */
  readonly layers: readonly LayerFiles[];
  /** roots, which are searched in this order */
  readonly paths: readonly GuestPath[];
  /** a line must match one of them */
  readonly patterns: readonly string[];
  readonly matchCase: GrepCase;
  /** see `NameFilter`; empty: all files */
  readonly globs: readonly string[];
  /** limit of matching lines */
  readonly limit: number;
  /** limit of matching lines of one file; null: none */
  readonly fileLimit: number | null;
  /** number of lines of context before and after a matching line */
  readonly before: number;
  readonly after: number;
  /** whether the byte ranges that match are requested */
  readonly ranges: boolean;
  readonly limits?: GrepLimits;
}

export interface GrepOutcome {
  readonly lines: PackedLines;
  readonly bounds: readonly GrepBound[];
  readonly fileCount: number;
  readonly bytes: number;
}

/**
 * Finds lines in the regular files of trees. The time is linear in the bytes that are read, for every pattern, and is
 * bounded. Closes all files: it may run in a thread, whose end would not close them.
 * @throws ApiError `validation_error` for a pattern or glob, `not_found` or `invalid_path` for the path; the error of
 *   `cancellation`, within a second
 */
export async function grep(request: GrepRequest, cancellation: Cancellation): Promise<GrepOutcome> {
  using open = new OpenLayers(OPEN_LAYERS_COUNT_MAX);
  const search = new Search(request, open, cancellation);
  await search.run();
  return search.outcome();
}

/** Ends a search that has reached a limit. */
class LimitReached extends Error {}

class Search implements Cancellation {
  readonly #request: GrepRequest;
  readonly #cancellation: Cancellation;
  readonly #limits: GrepLimits;
  readonly #tree: ImageTree;
  readonly #pattern: LinePattern;
  readonly #lineBytesMax: number;
  readonly #filter: NameFilter;
  readonly #deadline: number;
  readonly #lines = new LinePacker();
  readonly #bounds = new Set<GrepBound>();
  #matchCount = 0;
  #fileCount = 0;
  #entryCount = 0;
  #bytes = 0;

  constructor(request: GrepRequest, open: OpenLayers, cancellation: Cancellation) {
    this.#request = request;
    this.#cancellation = cancellation;
    this.#limits = request.limits ?? GREP_LIMITS;
    this.#tree = new ImageTree(request.layers, open, this);
    this.#pattern = new LinePattern(request.patterns, request.matchCase);
    // The time of a test is the product of the size and the length.
    const testBytesMax = Math.max(1, Math.floor(GREP_TEST_WORK_MAX / this.#pattern.programSize));
    this.#lineBytesMax = Math.min(this.#limits.lineBytesMax, testBytesMax);
    this.#filter = new NameFilter(request.globs, GREP_TEST_WORK_MAX);
    this.#deadline = performance.now() + this.#limits.msMax;
  }

  async run(): Promise<void> {
    try {
      const roots: ResolvedEntry[] = [];
      for (const path of this.#request.paths) roots.push(await this.#tree.stat(path, { follow: true }));
      for (const root of roots) await this.#root(root);
    } catch (error) {
      if (!(error instanceof LimitReached)) throw error;
    }
  }

  outcome(): GrepOutcome {
    return { lines: this.#lines.packed(), bounds: [...this.#bounds], fileCount: this.#fileCount, bytes: this.#bytes };
  }

  /** Ends the search when it is cancelled or its time is over. */
  throwIfAborted(): void {
    this.#cancellation.throwIfAborted();
    if (performance.now() > this.#deadline) this.#stop("time");
  }

  async #root(root: ResolvedEntry): Promise<void> {
    const prefix = root.path === "/" ? "" : root.path;
    const enters = ({ path }: WalkedEntry) => !this.#filter.excludes(displayName(path));
    for await (const walked of this.#tree.walk(root, enters)) {
      this.#entryCount++;
      if (this.#entryCount > this.#limits.entriesCountMax) this.#stop("entries");
      this.throwIfAborted();
      const { type, size } = walked.located.entry;
      if (type !== "f" || size === 0) continue;
      const name = walked.path === "" ? (root.path.split("/").at(-1) ?? "") : walked.path;
      if (!this.#isWanted(displayName(name as ByteString))) continue;
      await this.#file(walked, (walked.path === "" ? root.path : `${prefix}/${walked.path}`) as ByteString);
    }
  }

  /** Skips paths that are too long for the filter: a single test could take all of the time. */
  #isWanted(path: string): boolean {
    if (path.length <= this.#filter.pathLengthMax) return this.#filter.selects(path);
    this.#bounds.add("time");
    return false;
  }

  #stop(bound: GrepBound): never {
    this.#bounds.add(bound);
    throw new LimitReached();
  }

  async #file({ located }: WalkedEntry, path: ByteString): Promise<void> {
    const { entry } = located;
    using lease = this.#tree.lease(located);
    const lines = new LineReader(this.#lineBytesMax);
    const search = this.#searchOf(path);
    let isFirst = true;
    for await (const chunk of extentChunks(() => lease.share(), entry, { start: 0, end: entry.size })) {
      if (chunk.subarray(0, isFirst ? BINARY_PROBE_BYTES : chunk.length).includes(0)) return;
      if (isFirst) this.#fileCount++;
      isFirst = false;
      this.#bytes += chunk.length;
      for (const part of lines.parts(chunk)) this.#part(search, part);
      if (search.isDone) return;
      if (this.#bytes > this.#limits.bytesMax) this.#stop("bytes");
      this.throwIfAborted();
    }
    for (const part of lines.rest()) this.#part(search, part);
  }

  #part(search: FileSearch, part: LinePart): void {
    if (part.kind === "cut") this.#bounds.add("line_length");
    search.search(part);
  }

  #searchOf(path: ByteString): FileSearch {
    const { before, after, ranges, limit, fileLimit } = this.#request;
    const stopWhenFull = () => {
      if (this.#lines.isFull) this.#stop("limit");
    };
    const onMatch = () => {
      if (this.#matchCount === limit) this.#stop("limit");
      stopWhenFull();
      this.#matchCount++;
    };
    const limits = { matchesCountMax: fileLimit ?? Number.POSITIVE_INFINITY, onMatch, onContext: stopWhenFull };
    return new FileSearch(path, { pattern: this.#pattern, before, after, ranges, lines: this.#lines, ...limits }, this);
  }
}
