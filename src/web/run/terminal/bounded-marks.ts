/**
 * Characters without a width that follow each other at most. xterm.js joins them to the character before, and a browser takes
 * time for them that grows faster than their number. Real writing has fewer.
 */
export const MARKS_COUNT_MAX = 16;

/** All that xterm.js takes for characters without a width, and a few more. */
const MARK = /[\p{M}\p{Cf}\u06de\u1160-\u11ff]/u;
const PRINTED = /\P{Cc}/u;

/** Decodes the output of a terminal, and leaves out marks that are too many for one cell. */
export class BoundedMarks {
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  /** marks since the last character that has a width */
  #count = 0;

  /** The text of the next bytes. A character whose end is missing comes with the next ones. */
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
