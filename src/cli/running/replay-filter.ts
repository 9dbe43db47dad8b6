/** Longest part of a sequence that is held back until its end is known, in `bytes`. */
const HELD_BYTES_MAX = 256;

/**
 * Sequences that a terminal answers: ENQ, reports of its kind, state, modes, size, colours and clipboard (ECMA-48, the
 * control sequences of xterm), of the keyboard and of graphics (kitty).
 */
const QUERIES = new RegExp(
  [
    "\\x05|\\x1bZ",
    "\\x1b\\[(?:\\??[\\d;]*n|[>=]?[\\d;]*c|[01]?x|\\??\\d*\\$p|(?:1[1-9]|2[01])(?:;\\d*)*t|\\?u|>0?q)",
    "\\x1bP[+$]q[^\\x1b]*\\x1b\\\\",
    "\\x1b\\]\\d+;(?:[^\\x07\\x1b]*;)?\\?(?:\\x07|\\x1b\\\\)",
    "\\x1b_G[^\\x1b;]*a=q[^\\x1b]*\\x1b\\\\",
  ].join("|"),
  "g",
);
/** A sequence without its end, at the end of the text. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: sequences begin and end with control characters.
const OPEN = /\x1b(?:\[[\d;?>=$]*|[P\]_][^\x07\x1b]*\x1b?)?$/;

/**
 * Takes out of output that is shown once more what a terminal would answer: the program that asked has its answer, and
 * would get another one as if it was typed.
 */
export class ReplayFilter {
  #leftBytes: number;
  #held = "";

  /** @param replayBytes size of the output that is shown once more */
  constructor(replayBytes: number) {
    this.#leftBytes = replayBytes;
  }

  /** What is to be shown of the next piece of output. The end of a sequence may come with a later one. */
  take(bytes: Uint8Array): Uint8Array {
    if (this.#leftBytes === 0) return bytes;
    const replayed = bytes.subarray(0, this.#leftBytes);
    const live = bytes.subarray(replayed.byteLength);
    this.#leftBytes -= replayed.byteLength;
    const text = (this.#held + Buffer.from(replayed).toString("latin1")).replaceAll(QUERIES, "");
    const at = this.#leftBytes === 0 ? text.length : text.search(OPEN);
    const complete = at < 0 || text.length - at > HELD_BYTES_MAX ? text : text.slice(0, at);
    this.#held = text.slice(complete.length);
    return Buffer.concat([Buffer.from(complete, "latin1"), live]);
  }
}
