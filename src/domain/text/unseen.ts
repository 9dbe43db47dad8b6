/**
 * Marks of direction, of width zero and of tags, fillers, and selectors of variants: the ignorable characters of Unicode, and others
 * that have no shape and can hide or reorder text. The inside of a class in a regular expression with the flag `u`.
 */
export const UNSEEN_CHARACTERS =
  "\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u3164" +
  "\\ufe00-\\ufe0d\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}";

/** Selectors without a pictograph before them, which an emoji has; a regular expression with the flag `u`. */
export const STRAY_SELECTOR = "(?<!\\p{Extended_Pictographic})[\\ufe0e\\ufe0f]";
