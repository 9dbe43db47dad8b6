/** How the bytes of a text are read. */
export type TextEncoding = "utf-8" | "utf-16le" | "utf-16be";

/** A text as lines. All positions of characters count UTF-16 code units of `text`. */
export interface TextLines {
  readonly text: string;
  /** position of each line's first character, and at the end the length of `text` */
  readonly starts: Uint32Array;
  readonly encoding: TextEncoding;
  /** number of lines that end in CR LF, whose CR is not in `text` */
  readonly crlfCount: number;
  /** number of U+FFFD that replace invalid bytes */
  readonly replacedCount: number;
}

export interface TextRequest {
  readonly bytes: ArrayBuffer;
  /** the encoding of a part that does not begin the file; null: detect it */
  readonly encoding: TextEncoding | null;
  /** false: the file continues, so a last line without an end belongs to the next part, unless it is the only one */
  readonly isLast: boolean;
}

export interface TextReply extends TextLines {
  /** position of each line's first byte in `bytes`; empty for UTF-16 */
  readonly byteStarts: Uint32Array;
  /** number of bytes of the lines: the next part begins there */
  readonly usedBytes: number;
  /** true: the last line continues in the next part */
  readonly isCut: boolean;
}

/** A range of characters and its kind: an index into `TOKEN_KINDS`. */
export interface Tokens {
  /** start, end and kind of each token, in order; no token crosses the end of a line */
  readonly triples: Uint32Array;
  /** index of each line's first token, and at the end the number of all */
  readonly firsts: Uint32Array;
}

export interface HighlightRequest {
  readonly text: string;
  readonly starts: Uint32Array;
  /** a name of `grammars.ts` */
  readonly language: string;
}

export interface DiffRequest {
  /** the beginning of each file; null: it is not there */
  readonly before: ArrayBuffer | null;
  readonly after: ArrayBuffer | null;
}

export interface DiffReply {
  readonly before: TextLines;
  readonly after: TextLines;
  /** kind (`diff-kinds.ts`) and number of lines of each piece, in order */
  readonly pieces: Uint32Array;
  /** false: the texts differ too much to be compared within the bounds, and `pieces` remove and add everything that may differ */
  readonly isComplete: boolean;
}

/** The jobs of the worker. None of them waits for anything. */
export interface Jobs {
  readonly text: { readonly request: TextRequest; readonly reply: TextReply };
  readonly highlight: { readonly request: HighlightRequest; readonly reply: Tokens };
  readonly diff: { readonly request: DiffRequest; readonly reply: DiffReply };
}

export type JobName = keyof Jobs;

/** One job at a time: the page sends the next one after the answer. */
export interface JobMessage<Name extends JobName = JobName> {
  readonly id: number;
  readonly job: Name;
  readonly request: Jobs[Name]["request"];
}

export type AnswerMessage =
  | { readonly id: number; readonly reply: Jobs[JobName]["reply"] }
  | { readonly id: number; readonly problem: string };

/** Kinds of tokens, by the names of their styles (`.token-keyword`); 0 is plain text, which has no token. */
export const TOKEN_KINDS = [
  "plain",
  "keyword",
  "string",
  "comment",
  "number",
  "title",
  "type",
  "name",
  "meta",
  "added",
  "removed",
] as const;

/** Longest visible and highlighted part of a line, in `characters`. */
export const LINE_CHARACTERS_MAX = 4096;
