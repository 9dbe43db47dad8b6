import type { OutputLine } from "./output-buffer.ts";

/** Largest number of highlighted matches per line: each is an element. */
const PLACES_MAX = 128;

/** A range of a line, in `characters`. */
export interface Match {
  readonly from: number;
  readonly to: number;
}

/** Whether a search is case-sensitive: it is if it contains an upper-case letter. */
function isExact(words: string): boolean {
  return words !== words.toLowerCase();
}

/** The first matches of `words` in a text, case-sensitive only if `words` has an upper-case letter. */
export function placesOf(text: string, words: string): Match[] {
  if (words === "") return [];
  const searched = isExact(words) ? text : text.toLowerCase();
  // Some letters are longer in lower case, which would shift the positions.
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

/** The numbers of the lines that contain `words`, in ascending order. */
export function linesWith(lines: readonly OutputLine[], words: string): number[] {
  if (words === "") return [];
  const exact = isExact(words);
  return lines.filter(({ text }) => (exact ? text : text.toLowerCase()).includes(words)).map(({ number }) => number);
}
