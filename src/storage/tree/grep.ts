import { isUtf8 } from "node:buffer";
import { RE2JS, RE2JSException } from "re2js";
import { ApiError } from "../../domain/errors.ts";
import type { GrepBound } from "../../domain/grep.ts";
import { type ByteString, displayName, type GuestPath } from "../../domain/guest-path.ts";
import { type LayerFiles, OpenLayers } from "../layers/open-layers.ts";
import {
  GREP_BYTES_MAX,
  GREP_ENTRIES_COUNT_MAX,
  GREP_FOUND_BYTES_MAX,
  GREP_LINE_BYTES_MAX,
  GREP_MS_MAX,
  GREP_TEST_WORK_MAX,
  GREP_TEXT_BYTES_MAX,
  OPEN_LAYERS_COUNT_MAX,
} from "../limits.ts";
import type { Cancellation } from "../pacer.ts";
import { extentChunks } from "./extent-stream.ts";
import { globMatcher } from "./glob.ts";
import { ImageTree, type WalkedEntry } from "./image-tree.ts";

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
  readonly path: GuestPath;
  readonly pattern: string;
  readonly glob: string | null;
  /** limit of matches */
  readonly limit: number;
  readonly limits?: GrepLimits;
}

export interface FoundLine {
  readonly path: ByteString;
  readonly line: number;
  readonly bytes: Uint8Array;
  /** true when `bytes` is only the beginning of the line */
  readonly isCut: boolean;
}

export interface GrepOutcome {
  readonly found: readonly FoundLine[];
  readonly bounds: readonly GrepBound[];
  readonly fileCount: number;
  readonly bytes: number;
}

/**
 * Finds lines in the regular files of a tree. The time is linear in the bytes that are read, for every pattern, and is
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
  readonly #expression: RE2JS;
  readonly #lineBytesMax: number;
  readonly #filter: NameFilter;
  readonly #deadline: number;
  readonly #found: FoundLine[] = [];
  readonly #bounds = new Set<GrepBound>();
  #fileCount = 0;
  #entryCount = 0;
  #bytes = 0;
  #foundBytes = 0;

  constructor(request: GrepRequest, open: OpenLayers, cancellation: Cancellation) {
    this.#request = request;
    this.#cancellation = cancellation;
    this.#limits = request.limits ?? GREP_LIMITS;
    this.#tree = new ImageTree(request.layers, open, this);
    this.#expression = compileField("pattern", () => RE2JS.compile(request.pattern));
    this.#lineBytesMax = Math.min(this.#limits.lineBytesMax, testBytesMax(this.#expression.programSize()));
    this.#filter = compileField("glob", () => filterOf(request.glob));
    this.#deadline = performance.now() + this.#limits.msMax;
  }

  async run(): Promise<void> {
    try {
      const resolved = await this.#tree.stat(this.#request.path, { follow: true });
      const root = resolved.path === "/" ? "" : resolved.path;
      for await (const walked of this.#tree.walk(resolved)) {
        this.#entryCount++;
        if (this.#entryCount > this.#limits.entriesCountMax) this.#stop("entries");
        this.throwIfAborted();
        const { type, size } = walked.located.entry;
        if (type !== "f" || size === 0) continue;
        const name = walked.path === "" ? (resolved.path.split("/").at(-1) ?? "") : walked.path;
        if (!this.#isWanted(displayName(name as ByteString))) continue;
        await this.#file(walked, (walked.path === "" ? resolved.path : `${root}/${walked.path}`) as ByteString);
      }
    } catch (error) {
      if (!(error instanceof LimitReached)) throw error;
    }
  }

  outcome(): GrepOutcome {
    return { found: this.#found, bounds: [...this.#bounds], fileCount: this.#fileCount, bytes: this.#bytes };
  }

  /** Ends the search when it is cancelled or its time is over. */
  throwIfAborted(): void {
    this.#cancellation.throwIfAborted();
    if (performance.now() > this.#deadline) this.#stop("time");
  }

  /** Skips names that are too long for the filter: a single test could take all of the time. */
  #isWanted(name: string): boolean {
    const { nameLengthMax, matches } = this.#filter;
    if (name.length <= nameLengthMax) return matches(name);
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
    const lines = new LineReader(this.#lineBytesMax, () => this.#bounds.add("line_length"));
    let isFirst = true;
    let line = 1;
    for await (const chunk of extentChunks(() => lease.share(), entry, { start: 0, end: entry.size })) {
      if (chunk.subarray(0, isFirst ? BINARY_PROBE_BYTES : chunk.length).includes(0)) return;
      if (isFirst) this.#fileCount++;
      isFirst = false;
      this.#bytes += chunk.length;
      for (const block of lines.blocks(chunk)) line += this.#block(block, path, line);
      if (this.#bytes > this.#limits.bytesMax) this.#stop("bytes");
      this.throwIfAborted();
    }
    for (const block of lines.rest()) this.#block(block, path, line);
  }

  /** Searches whole lines and returns their number. Splitting text is much faster than splitting bytes. */
  #block(bytes: Buffer, path: ByteString, firstLine: number): number {
    const texts = isUtf8(bytes) ? bytes.toString("utf8").split("\n") : null;
    const lines = texts ?? bytes.toString("latin1").split("\n");
    for (const [index, line] of lines.entries()) {
      this.throwIfAborted();
      const text = texts === null ? displayName(line as ByteString) : line;
      if (!this.#expression.test(text)) continue;
      this.#add(path, firstLine + index, Buffer.from(line, texts === null ? "latin1" : "utf8"));
    }
    return lines.length;
  }

  #add(path: ByteString, line: number, bytes: Buffer): void {
    if (this.#found.length === this.#request.limit || this.#foundBytes > GREP_FOUND_BYTES_MAX) this.#stop("limit");
    const isCut = bytes.length > GREP_TEXT_BYTES_MAX;
    const text = isCut ? cutText(bytes) : bytes;
    this.#found.push({ path, line, bytes: text, isCut });
    this.#foundBytes += path.length + text.length;
  }
}

/** The beginning of a line, without cutting a UTF-8 character. */
function cutText(bytes: Buffer): Buffer {
  let end = GREP_TEXT_BYTES_MAX;
  while (end > GREP_TEXT_BYTES_MAX - 3 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return Buffer.from(bytes.subarray(0, end));
}

/** Number of `bytes` that an expression may be tested on at a time. The time of a test is their product with its size. */
function testBytesMax(programSize: number): number {
  return Math.max(1, Math.floor(GREP_TEST_WORK_MAX / programSize));
}

/** Selects the files to search. */
interface NameFilter {
  /** longest name that may be passed to `matches`, in characters */
  readonly nameLengthMax: number;
  readonly matches: (name: string) => boolean;
}

function filterOf(glob: string | null): NameFilter {
  if (glob === null) return { nameLengthMax: Number.POSITIVE_INFINITY, matches: () => true };
  const { matches, programSize } = globMatcher(glob.replace(/^\//, ""));
  if (glob.includes("/")) return { nameLengthMax: testBytesMax(programSize), matches };
  const nameLengthMax = Number.POSITIVE_INFINITY;
  return { nameLengthMax, matches: (path) => matches(path.slice(path.lastIndexOf("/") + 1)) };
}

function compileField<T>(field: string, make: () => T): T {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    const reason = error instanceof RE2JSException || field === "glob" ? error.message : "it is too complex";
    throw new ApiError("validation_error", `${field} is not valid: ${reason}`, { field }, { cause: error });
  }
}

const NEWLINE = 0x0a;

/**
 * Splits chunks into blocks of whole lines, without the final line feed. Of a line that exceeds the limit only the part
 * up to the limit is returned.
 */
class LineReader {
  readonly #lineBytesMax: number;
  readonly #onLongLine: () => void;
  #rest: Buffer = Buffer.alloc(0);
  /** inside the rest of a long line */
  #isSkipping = false;

  constructor(lineBytesMax: number, onLongLine: () => void) {
    this.#lineBytesMax = lineBytesMax;
    this.#onLongLine = onLongLine;
  }

  *blocks(chunk: Uint8Array): Generator<Buffer, void, undefined> {
    let bytes = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    if (this.#isSkipping) {
      const end = bytes.indexOf(NEWLINE);
      if (end === -1) return;
      bytes = bytes.subarray(end + 1);
      this.#isSkipping = false;
    }
    if (this.#rest.length > 0) bytes = Buffer.concat([this.#rest, bytes]);
    const end = bytes.lastIndexOf(NEWLINE);
    if (end >= 0) yield* this.#wholeLines(bytes.subarray(0, end));
    const rest = bytes.subarray(end + 1);
    this.#isSkipping = rest.length > this.#lineBytesMax;
    // Copied, because the chunk's buffer is reused.
    this.#rest = this.#isSkipping ? Buffer.alloc(0) : Buffer.from(rest);
    if (!this.#isSkipping) return;
    this.#onLongLine();
    yield rest.subarray(0, this.#lineBytesMax);
  }

  *rest(): Generator<Buffer, void, undefined> {
    if (this.#rest.length > 0) yield this.#rest;
  }

  *#wholeLines(bytes: Buffer): Generator<Buffer, void, undefined> {
    for (let start = 0; ; ) {
      const long = this.#longLine(bytes, start);
      if (long === -1) return yield bytes.subarray(start);
      this.#onLongLine();
      yield bytes.subarray(start, long + this.#lineBytesMax);
      const end = bytes.indexOf(NEWLINE, long + this.#lineBytesMax);
      if (end === -1) return;
      start = end + 1;
    }
  }

  /** Start of the first line that is too long, or -1. It looks for line feeds only as often as needed. */
  #longLine(bytes: Buffer, start: number): number {
    let position = start;
    while (bytes.length - position > this.#lineBytesMax) {
      const end = bytes.lastIndexOf(NEWLINE, position + this.#lineBytesMax);
      if (end < position) return position;
      position = end + 1;
    }
    return -1;
  }
}
