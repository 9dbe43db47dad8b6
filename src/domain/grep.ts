/** Bounds that can stop a search before its end. */
export const GREP_BOUNDS = ["limit", "bytes", "entries", "time", "line_length"] as const;
export type GrepBound = (typeof GREP_BOUNDS)[number];
