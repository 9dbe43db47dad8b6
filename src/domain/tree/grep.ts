import type { ByteString } from "./guest-path.ts";

/** Bounds that can stop a search before its end. */
export const GREP_BOUNDS = ["limit", "bytes", "entries", "time", "line_length"] as const;
export type GrepBound = (typeof GREP_BOUNDS)[number];

/** Whether a search distinguishes upper and lower case; `smart`: only if a pattern has an upper-case letter. */
export const GREP_CASES = ["sensitive", "insensitive", "smart"] as const;
export type GrepCase = (typeof GREP_CASES)[number];

/** Lines that match a pattern, and lines around them. */
export const GREP_LINE_KINDS = ["match", "context"] as const;
export type GrepLineKind = (typeof GREP_LINE_KINDS)[number];

/** Patterns and roots of one search. */
export const GREP_PATTERNS_COUNT_MAX = 16;
export const GREP_PATHS_COUNT_MAX = 16;
export const GREP_GLOBS_COUNT_MAX = 64;
/** Part of a line in the result, in `bytes`. */
export const GREP_TEXT_BYTES_MAX = 4096;
/** Lines before or after a match. */
export const GREP_CONTEXT_COUNT_MAX = 50;
/** Largest limit of matching lines. */
export const GREP_MATCHES_COUNT_MAX = 10_000;
/** Largest limit of the matching lines of one file. */
export const GREP_FILE_MATCHES_COUNT_MAX = 10_000;

/** A line of the result of a search. */
export interface GrepLine {
  readonly path: ByteString;
  readonly kind: GrepLineKind;
  /** number of the line, from 1 */
  readonly line: number;
  /** position of its first byte in the file */
  readonly offset: number;
  /** number of its `bytes`, without the line feed; of a line that was not read to its end, those that were read */
  readonly length: number;
  /** false for a last line without a line feed, and for a line that was not read to its end */
  readonly hasFeed: boolean;
  /** the line without the line feed, or its beginning */
  readonly bytes: Uint8Array;
  /** true when `bytes` is only the beginning of the line */
  readonly isCut: boolean;
  /**
   * Byte ranges of the line that match, in order: those that begin in `bytes`, and the first one. Empty when they were
   * not requested.
   */
  readonly ranges: readonly { readonly start: number; readonly end: number }[];
}
