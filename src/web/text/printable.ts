import { STRAY_SELECTOR, UNSEEN_CHARACTERS } from "../../domain/text/unseen.ts";

/** Invisible characters, soft hyphens, line separators and lone surrogates: they change how text looks. */
const HIDDEN = `[\\u00ad\\u2028\\u2029${UNSEEN_CHARACTERS}]|${STRAY_SELECTOR}|\\p{Surrogate}`;

const HAS_HIDDEN = new RegExp(HIDDEN, "u");

/** True for a text with characters that are invisible or change how others look, other than control characters. */
export function hasHidden(text: string): boolean {
  return HAS_HIDDEN.test(text);
}

export interface TextPart {
  readonly text: string;
  /** true: `text` is the escape of an invisible character */
  readonly isEscape: boolean;
}

/** The escape of an invisible character. */
function escapeOf(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  // These halves stand for bytes that are not UTF-8; valid text does not contain them.
  if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code - 0xdc00).toString(16)}`;
  if (character === "\n") return "\\n";
  if (character === "\r") return "\\r";
  if (character === "\t") return "\\t";
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return `\\u${code.toString(16).padStart(4, "0")}`;
}

/** Largest number of parts of a line: each may be an element, and a text of invisible characters would have thousands. */
export const PARTS_MAX = 128;
const ALL_UNSEEN = new RegExp(`[\\u0000-\\u001f\\u007f-\\u009f]|${HIDDEN}`, "gu");

/**
 * Text of a guest in parts, with escapes for invisible characters.
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

/** True for a text of blanks only, of any kind. */
export function isBlank(text: string): boolean {
  return /^[\p{Zs}\u2800]+$/u.test(text);
}

/** A text with all characters escaped. */
export function escaped(text: string): string {
  return [...text].map(escapeOf).join("");
}

/** Text of a guest as one line with escapes for invisible characters, for titles, attributes and file names. */
export function printable(text: string): string {
  return text.replace(ALL_UNSEEN, escapeOf);
}
