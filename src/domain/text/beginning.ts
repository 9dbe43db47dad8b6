/** Characters of JSON for one character of text, at most: a control character is written as an escape. */
const ESCAPE_CHARACTERS = 6;
/** Quotes and a comma. */
const QUOTES_CHARACTERS = 3;

/** The first items that fit into so many `characters` of JSON, of which the last may be the beginning of a text. */
export function beginning<Item extends string | object>(items: readonly Item[], charactersMax: number): Item[] {
  const kept: Item[] = [];
  let left = charactersMax;
  for (const item of items) {
    const fitting = typeof item === "string" ? (cutText(item, left) as Item) : item;
    left -= JSON.stringify(fitting).length + 1;
    const isCut = fitting !== item;
    if (left < 0 || (isCut && fitting === "")) break;
    kept.push(fitting);
    if (isCut) break;
  }
  return kept;
}

/** The text, or a beginning of it that fits into so many `characters` of JSON even if each needs an escape. */
export function cutText(text: string, charactersMax: number): string {
  if (JSON.stringify(text).length < charactersMax) return text;
  const quoted = Math.max(0, charactersMax - QUOTES_CHARACTERS);
  return text.slice(0, Math.floor(quoted / ESCAPE_CHARACTERS)).toWellFormed();
}
