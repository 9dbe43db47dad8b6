/* Kinds of the pieces of a comparison. */
export const BOTH = 0;
export const REMOVED = 1;
export const ADDED = 2;
