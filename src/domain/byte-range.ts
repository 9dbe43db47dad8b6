/** Part of a content, `end` not included, in `bytes`. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}
