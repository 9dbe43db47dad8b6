/** What can end a search before it has seen everything. */
export const GREP_BOUNDS = ["limit", "bytes", "entries", "time", "line_length"] as const;
export type GrepBound = (typeof GREP_BOUNDS)[number];
