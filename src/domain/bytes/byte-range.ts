/** A part of a content: offsets in `bytes`, `end` not included. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}
