import { fromBase64 } from "../../../client/base64.ts";
import type { OperationEvent } from "../../../client/types.ts";
import { charactersOf, LineWriter, type WrittenLine } from "./line-writer.ts";

/** Bounds of the output that a view keeps; the output itself may be endless. */
export const KEPT_LINES_MAX = 10_000;
export const KEPT_CHARACTERS_MAX = 4_194_304;
/** Cost of a line without its text, as `characters`: empty lines are not free. */
const LINE_OVERHEAD_CHARACTERS = 16;
/** Dropped lines that stay in the array until they are removed together. */
const SLACK_COUNT = 2048;

export type LineStream = "stdout" | "stderr";

/** A line of output, or a mark for missing output. */
export interface OutputLine extends WrittenLine {
  /** number of the line in the buffer, ascending */
  readonly number: number;
  readonly stream: LineStream | "mark";
  /** when it began, in the form of RFC 3339 */
  readonly time: string;
  /** the event in which it began */
  readonly event: number;
}

/**
 * The newest lines of both streams of a process, in the order in which they began. It is bounded by {@link KEPT_LINES_MAX}
 * and {@link KEPT_CHARACTERS_MAX}; the oldest lines go first.
 */
export class OutputBuffer {
  #lines: OutputLine[] = [];
  #from = 0;
  #nextNumber = 0;
  #characters = 0;
  #time = "";
  #event = 0;
  #hasErrors = false;
  readonly #pages: number;
  readonly #streams = { stdout: this.#streamOf("stdout"), stderr: this.#streamOf("stderr") };

  /** @param pages how many times {@link KEPT_LINES_MAX} and {@link KEPT_CHARACTERS_MAX} are kept */
  constructor(pages = 1) {
    this.#pages = pages;
  }

  /** Adds the output of an event. Ignores other events. */
  add({ id, time, type, data }: OperationEvent): void {
    this.#time = time;
    this.#event = id;
    if (type === "stderr") this.#hasErrors = true;
    if (type === "stdout" || type === "stderr")
      this.#streams[type].write(data as { content: string; encoding: string });
    else if (type === "truncated") {
      const { stream, bytes_dropped: bytes } = data as { stream: LineStream; bytes_dropped: number };
      this.#mark(
        `${bytes} more bytes of ${stream} were not kept: the run keeps as much as its limit of output allows.`,
      );
    } else if (type === "size_cap")
      this.#mark("The log of the run is full: further output of this process is not kept.");
    this.#trim();
  }

  /** A copy of the lines, the oldest first. Its last lines may still grow. */
  lines(): readonly OutputLine[] {
    this.#streams.stdout.lines.flush();
    this.#streams.stderr.lines.flush();
    this.#trim();
    return this.#lines.slice(this.#from);
  }

  /** Whether there was any standard error. */
  get hasErrors(): boolean {
    return this.#hasErrors;
  }

  /** Number of lines that were dropped at the front. */
  get droppedCount(): number {
    return this.#nextNumber - (this.#lines.length - this.#from);
  }

  /** Number of lines so far, dropped ones included. */
  get totalCount(): number {
    return this.#nextNumber;
  }

  #mark(text: string): void {
    const line = this.#begin("mark");
    line.text = text;
    this.#characters += text.length;
  }

  #begin(stream: OutputLine["stream"]): OutputLine {
    const line = {
      number: this.#nextNumber,
      stream,
      time: this.#time,
      event: this.#event,
      text: "",
      spans: null,
      cutCharacters: 0,
    };
    this.#nextNumber += 1;
    this.#characters += LINE_OVERHEAD_CHARACTERS;
    this.#lines.push(line);
    if (this.#lines.length - this.#from > KEPT_LINES_MAX * this.#pages) this.#drop();
    return line;
  }

  #streamOf(stream: LineStream): {
    readonly lines: LineWriter;
    write(data: { content: string; encoding: string }): void;
  } {
    let written = -1;
    const lines = new LineWriter(
      () => {
        const line = this.#begin(stream);
        written = line.number;
        return line;
      },
      (characters) => {
        // The present line may be dropped already; then its characters are not counted.
        if (written >= this.droppedCount) this.#characters += characters;
      },
    );
    const decoder = new TextDecoder();
    let isMidway = false;
    return {
      lines,
      write({ content, encoding }) {
        if (encoding === "base64") {
          lines.write(decoder.decode(fromBase64(content), { stream: true }));
          isMidway = true;
          return;
        }
        // A character may be split between two events, but ASCII bytes are never part of a longer character.
        if (isMidway) lines.write(decoder.decode());
        isMidway = false;
        lines.write(content);
      },
    };
  }

  #trim(): void {
    while (this.#characters > KEPT_CHARACTERS_MAX * this.#pages && this.#lines.length - this.#from > 1) this.#drop();
  }

  #drop(): void {
    const line = this.#lines[this.#from];
    if (line === undefined) return;
    this.#characters -= charactersOf(line) + LINE_OVERHEAD_CHARACTERS;
    this.#from += 1;
    if (this.#from < SLACK_COUNT) return;
    this.#lines = this.#lines.slice(this.#from);
    this.#from = 0;
  }
}

/**
 * The lines of `read` that come before the first visible line. The last event of `read` may also contain visible lines.
 */
export function linesBefore(read: readonly OutputLine[], visible: readonly OutputLine[]): readonly OutputLine[] {
  const event = visible[0]?.event;
  const isOfEvent = (line: OutputLine): boolean => line.event === event;
  const visibleCount = Math.min(visible.filter(isOfEvent).length, read.filter(isOfEvent).length);
  return read.slice(0, read.length - visibleCount);
}
