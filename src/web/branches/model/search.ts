import { shortId } from "../../text/format.ts";
import type { ImageNode, RunRow } from "./forest.ts";

/** A search for text in tags and commands, in any case, and for beginnings of whole or short ids. */
export interface Search {
  readonly text: string;
  finds(image: Pick<ImageNode, "id" | "tag" | "command">): boolean;
  findsRun(run: Pick<RunRow, "id" | "command">): boolean;
}

/** A search; null for blanks alone. */
export function searchOf(query: string): Search | null {
  const text = query.trim().toLowerCase();
  if (text === "") return null;
  const has = (value: string | null): boolean => value?.toLowerCase().includes(text) === true;
  // Users copy either the short form of an id, as the page shows it, or all of it.
  const isId = (id: string): boolean => id.startsWith(text) || shortId(id).startsWith(text);
  return {
    text,
    finds: ({ id, tag, command }) => has(tag) || has(command) || isId(id),
    findsRun: ({ id, command }) => has(command) || isId(id),
  };
}

/** A text in parts: every second one is a match of the search. */
export function partsOf(text: string, search: Search | null): string[] {
  if (search === null) return [text];
  const lower = text.toLowerCase();
  // Some characters change their length with their case, which would shift the positions.
  if (lower.length !== text.length) return [text];
  const parts: string[] = [];
  let from = 0;
  for (let at = lower.indexOf(search.text); at >= 0; at = lower.indexOf(search.text, from)) {
    parts.push(text.slice(from, at), text.slice(at, at + search.text.length));
    from = at + search.text.length;
  }
  return [...parts, text.slice(from)];
}
