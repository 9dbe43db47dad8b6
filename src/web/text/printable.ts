import { STRAY_SELECTOR, UNSEEN_CHARACTERS } from "../../domain/text/unseen.ts";

/** Invisible characters, soft hyphens, line separators and lone surrogates: they change how text looks. */
const HIDDEN = `[\\u00ad\\u2028\\u2029${UNSEEN_CHARACTERS}]|${STRAY_SELECTOR}|\\p{Surrogate}`;

const HAS_HIDDEN = new RegExp(HIDDEN, "u");

/** True for a text with characters that change how others are seen, or hide, other than control characters. */
export function hasHidden(text: string): boolean {
  return HAS_HIDDEN.test(text);
}

export interface TextPart {
  readonly text: string;
  /** true: `text` stands for a character that is not seen */
  readonly isEscape: boolean;
}

/** How a character that is not seen is written. */
function escapeOf(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  // Bytes that are not UTF-8 are given as these halves, which no text has.
  if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code - 0xdc00).toString(16)}`;
  if (character === "\n") return "\\n";
  if (character === "\r") return "\\r";
  if (character === "\t") return "\\t";
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return `\\u${code.toString(16).padStart(4, "0")}`;
}

/** Parts of one line: each may be an element, and a text of nothing but unseen characters would be thousands. */
export const PARTS_MAX = 128;
const ALL_UNSEEN = new RegExp(`[\\u0000-\\u001f\\u007f-\\u009f]|${HIDDEN}`, "gu");

/**
 * Text of a guest in parts, so that what is not seen can be shown.
 * @param partsMax number of parts after which the rest is one part, whose tabs stay
 */
export function partsOf(text: string, partsMax: number = PARTS_MAX): TextPart[] {
  const parts: TextPart[] = [];
  let from = 0;
  for (const match of text.matchAll(ALL_UNSEEN)) {
    if (parts.length + 2 >= partsMax) {
      const rest = text.slice(from);
      const visible = rest.replace(ALL_UNSEEN, (unseen) => (unseen === "\t" ? "\t" : escapeOf(unseen)));
      return [...parts, { text: visible, isEscape: visible !== rest }];
    }
    if (match.index > from) parts.push({ text: text.slice(from, match.index), isEscape: false });
    parts.push({ text: escapeOf(match[0]), isEscape: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) parts.push({ text: text.slice(from), isEscape: false });
  return parts;
}

/** True for a text of nothing but blanks of any kind, also those that no keyboard has. */
export function isBlank(text: string): boolean {
  return /^[\p{Zs}\u2800]+$/u.test(text);
}

/** A text with all its characters as they are written when they are not seen. */
export function escaped(text: string): string {
  return [...text].map(escapeOf).join("");
}

/** Text of a guest as one line in which everything is seen, for titles, attributes and file names. */
export function printable(text: string): string {
  return text.replace(ALL_UNSEEN, escapeOf);
}
