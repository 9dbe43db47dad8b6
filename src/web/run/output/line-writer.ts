import { PLAIN_STYLE, styleAfter } from "./sgr.ts";

/** Longest kept part of a line, in `characters`; the rest is only counted. */
export const LINE_CHARACTERS_MAX = 4096;
/** Largest number of changes of style in a line; those beyond are not drawn. */
const LINE_SPANS_MAX = 256;
/** Cost of a change of style, as `characters`. */
const SPAN_CHARACTERS = 16;
/** Longest escape sequence that is understood, in `characters`. */
const ESCAPE_CHARACTERS_MAX = 256;

/** A change of the style within a line. */
export interface Span {
  /** first character that has it */
  readonly from: number;
  readonly style: number;
}

/** The visible part of a line; the line that is being written changes. */
export interface WrittenLine {
  text: string;
  /** null: all of it is plain */
  spans: readonly Span[] | null;
  /** number of characters that were cut off its end */
  cutCharacters: number;
}

/** Cost of a line, as `characters`. */
export function charactersOf({ text, spans }: WrittenLine): number {
  return text.length + SPAN_CHARACTERS * (spans?.length ?? 0);
}

const ESC = "\u001b";
const BEL = "\u0007";
// biome-ignore lint/suspicious/noControlCharactersInRegex: it matches control characters.
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;
const CONTROL_FROM = new RegExp(CONTROL, "g");
/** Symbol of the first control character; the others follow by number. */
const PICTURES_FROM = 0x2400;
const PICTURE_OF_DELETE = "\u2421";
/** Control characters that are dropped: NUL, BEL, SO, SI. */
const SILENT: ReadonlySet<string> = new Set(["\u0000", BEL, "\u000e", "\u000f"]);

type State = "text" | "escape" | "sequence" | "string" | "charset";

/**
 * Turns the output of a program into lines, as a terminal with one row would: a carriage return overwrites the line, colours
 * become styles, and all other escape sequences are dropped. An unterminated sequence ends with its line.
 */
export class LineWriter {
  readonly #begin: () => WrittenLine;
  readonly #grown: (characters: number) => void;
  readonly #codes = new Uint16Array(LINE_CHARACTERS_MAX);
  readonly #styles = new Uint32Array(LINE_CHARACTERS_MAX);
  #length = 0;
  #cursor = 0;
  #cutCharacters = 0;
  #style = PLAIN_STYLE;
  #line: WrittenLine | null = null;
  #isStale = false;
  #state: State = "text";
  #sequence = "";

  /**
   * @param begin creates the next line
   * @param grown is called with the growth of a line, as `charactersOf` measures it
   */
  constructor(begin: () => WrittenLine, grown: (characters: number) => void) {
    this.#begin = begin;
    this.#grown = grown;
  }

  write(text: string): void {
    /** end of the line that contains `at`; found once per line, because a line may have very many control characters */
    let end = -1;
    for (let at = 0; at < text.length; ) {
      if (this.#state !== "text") {
        at = this.#escape(text, at);
        continue;
      }
      if (end < at) end = text.indexOf("\n", at);
      if (end < 0) end = text.length;
      const whole = this.#line === null ? this.#wholeLine(text, at, end) : -1;
      if (whole >= 0) {
        at = whole;
        continue;
      }
      CONTROL_FROM.lastIndex = at;
      const control = CONTROL_FROM.exec(text)?.index ?? text.length;
      if (control > at) this.#put(text, at, control);
      if (control < text.length) this.#control(text.charAt(control));
      at = control + 1;
    }
  }

  /** Updates the text of the present line. */
  flush(): void {
    const line = this.#line;
    if (line === null || !this.#isStale) return;
    this.#isStale = false;
    const before = charactersOf(line);
    line.text = String.fromCharCode(...this.#codes.subarray(0, this.#length));
    line.spans = this.#spans();
    line.cutCharacters = this.#cutCharacters;
    this.#grown(charactersOf(line) - before);
  }

  /** The fast path for a complete line of plain text. Returns the start of the next line, or -1. */
  #wholeLine(text: string, from: number, end: number): number {
    if (end === text.length) return -1;
    const content = text.slice(from, end);
    // A slice keeps the whole text alive, so only complete lines are slices.
    if (content.length > LINE_CHARACTERS_MAX || CONTROL.test(content)) return -1;
    const line = this.#begin();
    line.text = content;
    line.spans = this.#style === PLAIN_STYLE || content === "" ? null : [{ from: 0, style: this.#style }];
    this.#grown(charactersOf(line));
    return end + 1;
  }

  #open(): void {
    this.#line ??= this.#begin();
    this.#isStale = true;
  }

  #end(): void {
    this.#open();
    this.flush();
    this.#line = null;
    this.#length = 0;
    this.#cursor = 0;
    this.#cutCharacters = 0;
  }

  #put(text: string, from: number, to: number): void {
    this.#open();
    const count = Math.min(to - from, LINE_CHARACTERS_MAX - this.#cursor);
    if (this.#cursor > this.#length) {
      this.#codes.fill(0x20, this.#length, this.#cursor);
      this.#styles.fill(PLAIN_STYLE, this.#length, this.#cursor);
    }
    for (let index = 0; index < count; index += 1) this.#codes[this.#cursor + index] = text.charCodeAt(from + index);
    this.#styles.fill(this.#style, this.#cursor, this.#cursor + count);
    this.#cursor += count;
    this.#length = Math.max(this.#length, this.#cursor);
    this.#cutCharacters += to - from - count;
  }

  #control(character: string): void {
    if (character === "\n") this.#end();
    else if (character === "\r") this.#move(0);
    else if (character === "\b") this.#move(this.#cursor - 1);
    else if (character === "\t") this.#put("\t", 0, 1);
    else if (character === ESC) this.#state = "escape";
    else if (!SILENT.has(character)) this.#put(pictureOf(character), 0, 1);
  }

  #move(cursor: number): void {
    // The line is overwritten from its beginning, so it no longer counts as cut.
    if (cursor === 0) this.#cutCharacters = 0;
    this.#cursor = Math.min(Math.max(0, cursor), LINE_CHARACTERS_MAX - 1);
  }

  /** Reads an escape sequence. Returns the position after it. */
  #escape(text: string, from: number): number {
    if (this.#state === "string") return this.#string(text, from);
    const character = text.charAt(from);
    if (character === "\n" || character === ESC) {
      // The sequence is incomplete: another one begins, or the line ends.
      this.#leave(character === ESC ? "escape" : "text");
      return character === ESC ? from + 1 : from;
    }
    if (this.#state === "escape") this.#begins(character);
    else if (this.#state === "charset") this.#leave("text");
    else {
      this.#sequence += character;
      if (character >= "@" && character <= "~") this.#obey(this.#sequence);
      if ((character >= "@" && character <= "~") || this.#sequence.length > ESCAPE_CHARACTERS_MAX) this.#leave("text");
    }
    return from + 1;
  }

  #begins(character: string): void {
    if (character === "[") this.#state = "sequence";
    else if ("]PX^_".includes(character)) this.#state = "string";
    else if ("()*+-./#% ".includes(character)) this.#state = "charset";
    else this.#leave("text");
  }

  /** A string ends at BEL, at ESC \, or with the line. */
  #string(text: string, from: number): number {
    for (let at = from; at < text.length; at += 1) {
      const character = text.charAt(at);
      if (character === "\n") {
        this.#leave("text");
        return at;
      }
      if (character === BEL || character === ESC) {
        // ESC \ itself is dropped as a sequence of two characters.
        this.#leave(character === ESC ? "escape" : "text");
        return at + 1;
      }
    }
    return text.length;
  }

  #leave(state: State): void {
    this.#state = state;
    this.#sequence = "";
  }

  /** @param sequence the characters after `ESC [`, including the final one */
  #obey(sequence: string): void {
    const action = sequence.at(-1);
    const parameters = sequence.slice(0, -1);
    // Sequences with other parameters are private.
    if (!/^[\d;:]*$/.test(parameters)) return;
    const count = Math.max(1, Number.parseInt(parameters, 10) || 1);
    if (action === "m") this.#style = styleAfter(this.#style, parameters);
    else if (action === "K") this.#erase(Number.parseInt(parameters, 10) || 0);
    else if (action === "G") this.#move(count - 1);
    else if (action === "C") this.#move(this.#cursor + count);
    else if (action === "D") this.#move(this.#cursor - count);
  }

  /** @param part 0: from the cursor on; 1: up to the cursor; 2: all */
  #erase(part: number): void {
    this.#open();
    if (part !== 0) {
      const end = part === 1 ? Math.min(this.#cursor + 1, this.#length) : this.#length;
      this.#codes.fill(0x20, 0, end);
      this.#styles.fill(PLAIN_STYLE, 0, end);
    }
    if (part !== 1) {
      this.#length = part === 0 ? Math.min(this.#length, this.#cursor) : 0;
      this.#cutCharacters = 0;
    }
  }

  #spans(): Span[] | null {
    const spans: Span[] = [];
    let last = PLAIN_STYLE;
    for (let at = 0; at < this.#length && spans.length < LINE_SPANS_MAX; at += 1) {
      const style = this.#styles[at] ?? PLAIN_STYLE;
      if (style !== last) spans.push({ from: at, style });
      last = style;
    }
    return spans.length === 0 ? null : spans;
  }
}

function pictureOf(character: string): string {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(PICTURES_FROM + code);
  return code === 0x7f ? PICTURE_OF_DELETE : "\ufffd";
}
