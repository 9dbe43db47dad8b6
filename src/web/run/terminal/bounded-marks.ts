/**
 * Longest sequence of characters without a width. xterm.js joins them to the character before them, and the time that a
 * browser needs to draw them grows faster than their number. Real scripts use fewer.
 */
export const MARKS_COUNT_MAX = 16;

/** All characters that have no width in xterm.js, and a few more. */
const MARK = /[\p{M}\p{Cf}\u06de\u1160-\u11ff]/u;
const PRINTED = /\P{Cc}/u;

/** Decodes the output of a terminal, and drops the marks of a cell beyond {@link MARKS_COUNT_MAX}. */
export class BoundedMarks {
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  /** marks since the last character that has a width */
  #count = 0;

  /** The text of the next bytes. An incomplete character at the end is returned with the following bytes. */
  text(bytes: Uint8Array): string {
    const text = this.#decoder.decode(bytes, { stream: true });
    if (MARK.test(text)) return this.#bounded(text);
    if (PRINTED.test(text)) this.#count = 0;
    return text;
  }

  #bounded(text: string): string {
    let kept = "";
    for (const character of text) {
      const isMark = MARK.test(character);
      if (isMark) this.#count += 1;
      else if (PRINTED.test(character)) this.#count = 0;
      if (!isMark || this.#count <= MARKS_COUNT_MAX) kept += character;
    }
    return kept;
  }
}
