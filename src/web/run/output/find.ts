import type { OutputLine } from "./output-buffer.ts";

/** Places of one line that are marked: each is an element. */
const PLACES_MAX = 128;

/** A place in a line, in `characters`. */
export interface Match {
  readonly from: number;
  readonly to: number;
}

/** Whether a search with these words regards the case: it does when they have an upper-case letter. */
function isExact(words: string): boolean {
  return words !== words.toLowerCase();
}

/** The first places of `words` in a text; case counts only for words that have an upper-case letter. */
export function placesOf(text: string, words: string): Match[] {
  if (words === "") return [];
  const searched = isExact(words) ? text : text.toLowerCase();
  // A letter whose lower case is longer would shift the places.
  if (searched.length !== text.length) return [];
  const places: Match[] = [];
  for (
    let at = searched.indexOf(words);
    at >= 0 && places.length < PLACES_MAX;
    at = searched.indexOf(words, at + words.length)
  ) {
    places.push({ from: at, to: at + words.length });
  }
  return places;
}

/** The numbers of the lines that have `words`, in ascending order. */
export function linesWith(lines: readonly OutputLine[], words: string): number[] {
  if (words === "") return [];
  const exact = isExact(words);
  return lines.filter(({ text }) => (exact ? text : text.toLowerCase()).includes(words)).map(({ number }) => number);
}
