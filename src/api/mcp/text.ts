import { STRAY_SELECTOR, UNSEEN_CHARACTERS } from "../../domain/text/unseen.ts";

/*
 * Bytes of guests as text for a model: without control sequences and invisible characters, and no longer than requested.
 */

/** Escape sequences of terminals: CSI, terminated OSC and the like, all others with the byte that follows. */
const ESCAPES =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these sequences begin with ESC.
  /\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\)|[ -/]*[0-~]?)/g;
/** Other control characters, and invisible characters, which can reorder or hide text. */
const INVISIBLE = new RegExp(`[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f${UNSEEN_CHARACTERS}]|${STRAY_SELECTOR}`, "gu");

/** A part with NUL, or with more than this share of bytes that are not UTF-8, is binary. */
const INVALID_RATIO = 0.1;
const REPLACEMENT = "\ufffd";

/** The text of an output without control sequences. An overwritten line has its last state. */
export function outputText(bytes: Uint8Array): string {
  const visible = decoded(bytes).replace(ESCAPES, "");
  const lines = visible.includes("\r") ? visible.split("\n").map(lastState).join("\n") : visible;
  return lines.replace(INVISIBLE, "");
}

/** The visible characters of a file, and the number of the others. */
export function fileText(bytes: Uint8Array): { readonly text: string; readonly hiddenCount: number } {
  const whole = decoded(bytes).replaceAll("\r\n", "\n");
  const text = whole.replace(INVISIBLE, "");
  return { text, hiddenCount: whole.length - text.length };
}

function decoded(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

function lastState(line: string): string {
  const states = line.split("\r").filter((state) => state !== "");
  return states.at(-1) ?? "";
}

export function isBinary(bytes: Uint8Array): boolean {
  if (bytes.includes(0)) return true;
  const text = decoded(bytes);
  const invalidCount = text.split(REPLACEMENT).length - 1;
  return invalidCount > Math.max(2, text.length * INVALID_RATIO);
}

/** A name of a guest in one line: control characters and the like as `\u{…}`. */
export function shownName(name: string): string {
  const escaped = (character: string): string => `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`;
  return name.replace(/[\t\n]/g, escaped).replace(INVISIBLE, escaped);
}

/** At most `charactersMax` of a line; the rest is counted. */
export function cutLine(line: string, charactersMax: number): string {
  if (line.length <= charactersMax) return line;
  // Does not split a surrogate pair.
  const kept = line.slice(0, charactersMax).replace(/[\ud800-\udbff]$/, "");
  return `${kept}… (+${line.length - kept.length} characters)`;
}

/** Parts of a content are joined when they have this many `bytes`, not one by one. */
const COLLECTED_BYTES = 65_536;

/** Keeps the end of a content of any length, which may come in many small parts. */
export class Tail {
  readonly #bytesMax: number;
  #parts: Uint8Array[] = [];
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** The part is copied, because its memory may be reused. */
  push(part: Uint8Array): void {
    // The `slice` of a Buffer would not copy.
    const kept = Buffer.from(part.subarray(-this.#bytesMax));
    this.#parts.push(kept);
    this.#bytes += kept.byteLength;
    if (this.#bytes > this.#bytesMax + COLLECTED_BYTES) this.take();
  }

  /** The stored last bytes. */
  take(): Uint8Array {
    const bytes = Buffer.concat(this.#parts).subarray(-this.#bytesMax);
    this.#parts = [bytes];
    this.#bytes = bytes.byteLength;
    return bytes;
  }
}

/** Keeps the beginning and the end of a content of any length. */
export class HeadAndTail {
  readonly #headBytesMax: number;
  #head = new Uint8Array(0);
  readonly #tail: Tail;
  /** of the whole content, in `bytes` */
  totalBytes = 0;

  /** @param bytesMax of both together; the end gets two thirds, because it has the reason of a failure */
  constructor(bytesMax: number) {
    this.#headBytesMax = Math.floor(bytesMax / 3);
    this.#tail = new Tail(bytesMax - this.#headBytesMax);
  }

  push(chunk: Uint8Array): void {
    this.totalBytes += chunk.byteLength;
    const headRoom = Math.max(0, this.#headBytesMax - this.#head.byteLength);
    if (headRoom > 0) this.#head = Buffer.concat([this.#head, chunk.subarray(0, headRoom)]);
    if (chunk.byteLength > headRoom) this.#tail.push(chunk.subarray(headRoom));
  }

  /** The content, or its beginning and end, cut at lines where they are short, and how many `bytes` lie between them. */
  parts(): { readonly head: Uint8Array; readonly tail: Uint8Array; readonly omittedBytes: number } {
    const tail = this.#tail.take();
    const isWhole = this.totalBytes === this.#head.byteLength + tail.byteLength;
    if (isWhole) return { head: Buffer.concat([this.#head, tail]), tail: new Uint8Array(0), omittedBytes: 0 };
    const kept = { head: wholeLines(this.#head), tail: fromLine(tail) };
    return { ...kept, omittedBytes: this.totalBytes - kept.head.byteLength - kept.tail.byteLength };
  }
}

const NEWLINE = 0x0a;
/** A cut may drop this share of a part to be at the end of a line. */
const DROPPED_RATIO = 0.5;

/** Up to the last newline; without one near, up to the last whole character. */
function wholeLines(bytes: Uint8Array): Uint8Array {
  const end = bytes.lastIndexOf(NEWLINE) + 1;
  if (end >= bytes.byteLength * DROPPED_RATIO) return bytes.subarray(0, end);
  let last = bytes.byteLength;
  while (last > 0 && isContinuation(bytes[last - 1])) last--;
  return bytes.subarray(0, Math.max(0, last - 1));
}

/** From the first line that begins in `bytes`; without one near, from the first whole character. */
function fromLine(bytes: Uint8Array): Uint8Array {
  const start = bytes.indexOf(NEWLINE) + 1;
  if (start > 0 && start <= bytes.byteLength * DROPPED_RATIO) return bytes.subarray(start);
  let first = 0;
  while (isContinuation(bytes[first])) first++;
  return bytes.subarray(first);
}

/** True for a continuation byte of UTF-8. */
function isContinuation(byte: number | undefined): boolean {
  return byte !== undefined && (byte & 0xc0) === 0x80;
}

/** `1,234,567 bytes` */
export function shownBytes(bytes: number): string {
  return `${bytes.toLocaleString("en-US")} byte${bytes === 1 ? "" : "s"}`;
}

/** `0.4 s`, `12 s`, `3 min 5 s` */
export function shownSeconds(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}
