import { isUtf8 } from "node:buffer";
import { RE2JS, RE2JSException } from "re2js";
import { ApiError } from "../domain/errors.ts";
import type { GrepBound } from "../domain/grep.ts";
import { type ByteString, displayName, type GuestPath } from "../domain/guest-path.ts";
import { extentChunks } from "./extent-stream.ts";
import { globMatcher } from "./glob.ts";
import { ImageTree, type WalkedEntry } from "./image-tree.ts";
import {
  GREP_BYTES_MAX,
  GREP_ENTRIES_COUNT_MAX,
  GREP_LINE_BYTES_MAX,
  GREP_MS_MAX,
  GREP_TEXT_BYTES_MAX,
  OPEN_LAYERS_COUNT_MAX,
} from "./limits.ts";
import { type LayerFiles, OpenLayers } from "./open-layers.ts";

/** A file is binary when there is a NUL in as many first `bytes`. */
const BINARY_PROBE_BYTES = 8192;

/** Bounds of a search; tests lower them. */
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

/** All that a search needs, as plain values: it crosses to another thread. */
export interface GrepRequest {
  /** of the image, the lowest first */
  readonly layers: readonly LayerFiles[];
  readonly path: GuestPath;
  readonly pattern: string;
  readonly glob: string | null;
  /** most matches */
  readonly limit: number;
  readonly limits?: GrepLimits;
}

export interface FoundLine {
  readonly path: ByteString;
  readonly line: number;
  readonly bytes: Uint8Array;
  /** `bytes` is only the beginning of the line */
  readonly isCut: boolean;
}

export interface GrepOutcome {
  readonly found: readonly FoundLine[];
  readonly bounds: readonly GrepBound[];
  readonly fileCount: number;
  readonly bytes: number;
}

/**
 * Finds lines in the regular files of a tree. The time is linear in what is read, whatever the pattern, and bounded.
 * No file stays open behind it: it may run in a thread, whose end would close none.
 * @throws ApiError `validation_error` for a pattern or glob, `not_found` or `invalid_path` for the path; the reason of
 * `signal`
 */
export async function grep(request: GrepRequest, signal: AbortSignal): Promise<GrepOutcome> {
  using open = new OpenLayers(OPEN_LAYERS_COUNT_MAX);
  const search = new Search(request, open, signal);
  await search.run();
  return search.outcome();
}

/** Ends a search whose bound is met. */
class BoundMet extends Error {}

class Search {
  readonly #request: GrepRequest;
  readonly #signal: AbortSignal;
  readonly #limits: GrepLimits;
  readonly #tree: ImageTree;
  readonly #expression: RE2JS;
  readonly #isWanted: (path: string) => boolean;
  readonly #deadline: number;
  readonly #found: FoundLine[] = [];
  readonly #bounds = new Set<GrepBound>();
  #fileCount = 0;
  #entryCount = 0;
  #bytes = 0;

  constructor(request: GrepRequest, open: OpenLayers, signal: AbortSignal) {
    this.#request = request;
    this.#signal = signal;
    this.#limits = request.limits ?? GREP_LIMITS;
    this.#tree = new ImageTree(request.layers, open);
    this.#expression = checked("pattern", () => RE2JS.compile(request.pattern));
    this.#isWanted = checked("glob", () => filterOf(request.glob));
    this.#deadline = performance.now() + this.#limits.msMax;
  }

  async run(): Promise<void> {
    const resolved = this.#tree.stat(this.#request.path, { follow: true });
    const root = resolved.path === "/" ? "" : resolved.path;
    try {
      for await (const walked of this.#tree.walk(resolved)) {
        this.#entryCount++;
        if (this.#entryCount > this.#limits.entriesCountMax) this.#stop("entries");
        this.#checkTime();
        const { type, size } = walked.place.entry;
        if (type !== "f" || size === 0) continue;
        const name = walked.path === "" ? (resolved.path.split("/").at(-1) ?? "") : walked.path;
        if (!this.#isWanted(displayName(name as ByteString))) continue;
        await this.#file(walked, (walked.path === "" ? resolved.path : `${root}/${walked.path}`) as ByteString);
      }
    } catch (error) {
      if (!(error instanceof BoundMet)) throw error;
    }
  }

  outcome(): GrepOutcome {
    return { found: this.#found, bounds: [...this.#bounds], fileCount: this.#fileCount, bytes: this.#bytes };
  }

  #checkTime(): void {
    this.#signal.throwIfAborted();
    if (performance.now() > this.#deadline) this.#stop("time");
  }

  #stop(bound: GrepBound): never {
    this.#bounds.add(bound);
    throw new BoundMet();
  }

  async #file({ place }: WalkedEntry, path: ByteString): Promise<void> {
    const { entry } = place;
    using lease = this.#tree.lease(place);
    const lines = new LineReader(this.#limits.lineBytesMax, () => this.#bounds.add("line_length"));
    let isFirst = true;
    let line = 1;
    for await (const chunk of extentChunks(() => lease.share(), entry, { start: 0, end: entry.size })) {
      if (chunk.subarray(0, isFirst ? BINARY_PROBE_BYTES : chunk.length).includes(0)) return;
      if (isFirst) this.#fileCount++;
      isFirst = false;
      this.#bytes += chunk.length;
      for (const block of lines.blocks(chunk)) line += this.#block(block, path, line);
      if (this.#bytes > this.#limits.bytesMax) this.#stop("bytes");
      this.#checkTime();
    }
    for (const block of lines.rest()) this.#block(block, path, line);
  }

  /** Searches whole lines, and gives their number. Text is taken apart much faster than bytes. */
  #block(bytes: Buffer, path: ByteString, firstLine: number): number {
    const texts = isUtf8(bytes) ? bytes.toString("utf8").split("\n") : null;
    const lines = texts ?? bytes.toString("latin1").split("\n");
    for (const [index, line] of lines.entries()) {
      const text = texts === null ? displayName(line as ByteString) : line;
      if (!this.#expression.test(text)) continue;
      this.#add(path, firstLine + index, Buffer.from(line, texts === null ? "latin1" : "utf8"));
    }
    return lines.length;
  }

  #add(path: ByteString, line: number, bytes: Buffer): void {
    if (this.#found.length === this.#request.limit) this.#stop("limit");
    const isCut = bytes.length > GREP_TEXT_BYTES_MAX;
    this.#found.push({ path, line, bytes: isCut ? cutText(bytes) : bytes, isCut });
  }
}

/** The beginning of a line, with no character cut in two. */
function cutText(bytes: Buffer): Buffer {
  let end = GREP_TEXT_BYTES_MAX;
  while (end > GREP_TEXT_BYTES_MAX - 3 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return Buffer.from(bytes.subarray(0, end));
}

function filterOf(glob: string | null): (path: string) => boolean {
  if (glob === null) return () => true;
  const matches = globMatcher(glob.replace(/^\//, ""));
  return glob.includes("/") ? matches : (path) => matches(path.slice(path.lastIndexOf("/") + 1));
}

function checked<T>(field: string, make: () => T): T {
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
 * Cuts chunks into blocks of whole lines, without the end of the last one. A line past the limit is given up to it,
 * and its rest is passed over.
 */
class LineReader {
  readonly #lineBytesMax: number;
  readonly #onLongLine: () => void;
  #rest: Buffer = Buffer.alloc(0);
  /** inside a line that was given already */
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
    // The chunk's buffer is used again.
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

  /** Where the first line that is too long begins, or -1; it looks only at every so many bytes. */
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
