/**
 * Characters that are not seen, or that change how others are seen: control characters, marks of direction, of width zero,
 * of lines and of tags, and halves of surrogate pairs.
 */
const UNSEEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: those are what it finds.
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|\p{Surrogate}/u;

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
const ALL_UNSEEN = new RegExp(UNSEEN, "gu");

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
      const shown = rest.replace(ALL_UNSEEN, (unseen) => (unseen === "\t" ? "\t" : escapeOf(unseen)));
      return [...parts, { text: shown, isEscape: shown !== rest }];
    }
    if (match.index > from) parts.push({ text: text.slice(from, match.index), isEscape: false });
    parts.push({ text: escapeOf(match[0]), isEscape: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) parts.push({ text: text.slice(from), isEscape: false });
  return parts;
}

/** Text of a guest as one line in which everything is seen, for titles, attributes and file names. */
export function printable(text: string): string {
  return text.replace(ALL_UNSEEN, escapeOf);
}
