import { isUtf8 } from "node:buffer";
import { GREP_TEXT_BYTES_MAX, type GrepLineKind } from "../../domain/tree/grep.ts";
import { type ByteString, displayName } from "../../domain/tree/guest-path.ts";
import type { Cancellation } from "../pacer.ts";
import type { LinePattern } from "./line-pattern.ts";
import type { LinePart } from "./line-reader.ts";
import { type LinePacker, type LineRecord, lineText } from "./packed-lines.ts";

const NEWLINE = 0x0a;

/** Options of a search in one file, and the destination of its lines. */
export interface FileSearchOptions {
  readonly pattern: LinePattern;
  /** lines of context before and after a match */
  readonly before: number;
  readonly after: number;
  /** limit of matching lines in the file */
  readonly matchesCountMax: number;
  /** whether the byte ranges of matches are found */
  readonly ranges: boolean;
  readonly lines: LinePacker;
  /** called before a matching line is added; throws when none may be */
  readonly onMatch: () => void;
  /** called before a line of context is added; throws when none may be */
  readonly onContext: () => void;
}

/** Finds the lines of one file, whose parts must come in order. Each line is added once, in order. */
export class FileSearch {
  readonly #options: FileSearchOptions;
  readonly #path: ByteString;
  readonly #cancellation: Cancellation;
  /** number of the next line */
  #line = 1;
  #matchesCount = 0;
  /** number of the last line that was added, and of the last one that is context of a match */
  #addedTo = 0;
  #contextTo = 0;
  /** the last lines of earlier parts that may become context */
  #recent: LineRecord[] = [];
  /** a line whose end was not read yet: whether it was added */
  #open: { readonly isAdded: boolean } | null = null;

  constructor(path: ByteString, options: FileSearchOptions, cancellation: Cancellation) {
    this.#path = path;
    this.#options = options;
    this.#cancellation = cancellation;
  }

  /** True when no further part can have a line to be added. */
  get isDone(): boolean {
    return (
      this.#matchesCount === this.#options.matchesCountMax &&
      this.#line > this.#contextTo &&
      this.#open?.isAdded !== true
    );
  }

  /** @throws the errors of the cancellation, `onMatch` and `onContext` */
  search(part: LinePart): void {
    if (part.kind === "end") {
      this.#close(part.length, part.hasFeed);
      return;
    }
    this.#lines(part.bytes, new LineCursor(part, this.#line));
    if (part.kind === "cut") this.#open = { isAdded: this.#addedTo === this.#line - 1 };
  }

  #close(length: number, hasFeed: boolean): void {
    if (this.#open?.isAdded) this.#options.lines.setLength(length, hasFeed);
    const last = this.#recent.at(-1);
    if (last?.line === this.#line - 1) Object.assign(last, { length, hasFeed });
    this.#open = null;
  }

  /** Splitting text is much faster than splitting bytes. */
  #lines(bytes: Buffer, cursor: LineCursor): void {
    const { pattern, matchesCountMax } = this.#options;
    const texts = isUtf8(bytes) ? bytes.toString("utf8").split("\n") : null;
    const lines = texts ?? bytes.toString("latin1").split("\n");
    const first = this.#line;
    this.#line += lines.length;
    for (const [index, line] of lines.entries()) {
      this.#cancellation.throwIfAborted();
      const number = first + index;
      const isContext = number <= this.#contextTo;
      if (this.#matchesCount < matchesCountMax) {
        const text = texts === null ? displayName(line as ByteString) : line;
        if (pattern.test(text)) this.#match(number, text, cursor);
        else if (isContext) this.#context(cursor.record(number, "context"));
      } else if (isContext) this.#context(cursor.record(number, "context"));
      else break;
    }
    this.#keepRecent(cursor);
  }

  #match(number: number, text: string, cursor: LineCursor): void {
    const { before, after, ranges, pattern, lines, onMatch } = this.#options;
    onMatch();
    for (const record of this.#recent) if (record.line >= number - before) this.#context(record);
    const contextFrom = Math.max(this.#addedTo + 1, number - before, cursor.line);
    for (let context = contextFrom; context < number; context++) this.#context(cursor.record(context, "context"));
    const record = cursor.record(number, "match", (line) =>
      ranges ? pattern.ranges(text, line, GREP_TEXT_BYTES_MAX, this.#cancellation) : [],
    );
    lines.add(this.#path, record);
    this.#matchesCount++;
    this.#addedTo = number;
    this.#contextTo = number + after;
  }

  #context(record: LineRecord): void {
    if (record.line <= this.#addedTo) return;
    this.#options.onContext();
    this.#options.lines.add(this.#path, record);
    this.#addedTo = record.line;
  }

  /** Copies the lines that may be context of a match in a later part. */
  #keepRecent(cursor: LineCursor): void {
    const { before, matchesCountMax } = this.#options;
    if (before === 0 || this.#matchesCount === matchesCountMax) {
      this.#recent = [];
      return;
    }
    this.#recent = [...this.#recent, ...cursor.last(before, this.#line - 1)].slice(-before);
  }
}

/** The lines of a part, found by their numbers. */
class LineCursor {
  readonly #bytes: Buffer;
  readonly #part: Extract<LinePart, { bytes: Buffer }>;
  /** number of the line at `#at` */
  line: number;
  #at = 0;

  /** @param line number of the first line */
  constructor(part: Extract<LinePart, { bytes: Buffer }>, line: number) {
    this.#bytes = part.bytes;
    this.#part = part;
    this.line = line;
  }

  /** A line; the numbers of calls must increase. @param ranges finds the ranges of its bytes */
  record(line: number, kind: GrepLineKind, ranges: (bytes: Buffer) => readonly number[] = () => []): LineRecord {
    for (; this.line < line; this.line++) this.#at = this.#bytes.indexOf(NEWLINE, this.#at) + 1;
    const feed = this.#bytes.indexOf(NEWLINE, this.#at);
    const end = feed === -1 ? this.#bytes.length : feed;
    return this.#recordOf(this.#at, end, { line, kind, ranges: ranges(this.#bytes.subarray(this.#at, end)) });
  }

  /** Copies of the last lines, at most `count`. @param line number of the last one */
  last(count: number, line: number): LineRecord[] {
    const records: LineRecord[] = [];
    for (let end = this.#bytes.length; end >= 0 && records.length < count; ) {
      const feed = end === 0 ? -1 : this.#bytes.lastIndexOf(NEWLINE, end - 1);
      const record = this.#recordOf(feed + 1, end, { line: line - records.length, kind: "context", ranges: [] });
      records.push({ ...record, text: Buffer.from(record.text) });
      end = feed;
    }
    return records.reverse();
  }

  #recordOf(start: number, end: number, fields: Pick<LineRecord, "line" | "kind" | "ranges">): LineRecord {
    const part = this.#part;
    return {
      ...fields,
      offset: part.offset + start,
      // A line that is too long counts one more byte until its end is read, when `setLength` sets its length.
      length: part.kind === "cut" ? end + 1 : end - start,
      hasFeed: part.kind === "lines" && (part.hasFeed || end < this.#bytes.length),
      text: lineText(this.#bytes.subarray(start, end)),
    };
  }
}
