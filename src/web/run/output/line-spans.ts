import type { Match } from "./find.ts";
import type { Span } from "./line-writer.ts";
import { PLAIN_STYLE } from "./sgr.ts";

/** A part of a line with one style. */
export interface LineSpan {
  readonly text: string;
  readonly style: number;
  readonly isFound: boolean;
}

/** Splits a line at changes of the style and at the ends of matches. */
export function lineSpans(text: string, spans: readonly Span[] | null, matches: readonly Match[]): LineSpan[] {
  if (spans === null && matches.length === 0) return text === "" ? [] : [{ text, style: PLAIN_STYLE, isFound: false }];
  const cuts = new Set([0, text.length]);
  for (const { from } of spans ?? []) cuts.add(Math.min(from, text.length));
  for (const { from, to } of matches) cuts.add(from).add(to);
  const places = [...cuts].sort((one, other) => one - other);
  const cut: LineSpan[] = [];
  let span = -1;
  let match = 0;
  for (const [index, from] of places.entries()) {
    const to = places[index + 1];
    if (to === undefined) break;
    while (spans !== null && (spans[span + 1]?.from ?? Number.POSITIVE_INFINITY) <= from) span += 1;
    while ((matches[match]?.to ?? Number.POSITIVE_INFINITY) <= from) match += 1;
    const isFound = (matches[match]?.from ?? Number.POSITIVE_INFINITY) <= from;
    cut.push({ text: text.slice(from, to), style: spans?.[span]?.style ?? PLAIN_STYLE, isFound });
  }
  return cut;
}
