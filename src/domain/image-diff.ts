/** Kinds of difference between two images at a path. */
export const DIFF_CHANGES = ["added", "changed", "removed"] as const;
export type DiffChange = (typeof DIFF_CHANGES)[number];
