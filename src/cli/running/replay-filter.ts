/** Longest part of a sequence that is held back until its end is known, in `bytes`. */
const HELD_BYTES_MAX = 256;

/**
 * Sequences that a terminal answers: ENQ, queries of its type, state, modes, size, colours and clipboard (ECMA-48, the
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
 * Removes from replayed output the sequences that a terminal would answer: the program has its answer already, and would
 * read another one as typed input.
 */
export class ReplayFilter {
  #leftBytes: number;
  #held = "";

  /** @param replayBytes size of the replayed output */
  constructor(replayBytes: number) {
    this.#leftBytes = replayBytes;
  }

  /** The part of the next piece of output to show. The end of a sequence may arrive with a later piece. */
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
