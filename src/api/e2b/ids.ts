import { parseUuid } from "../../domain/ids.ts";

const shortExpression = /^([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$/i;

/** An id as this surface writes it: a UUID without dashes, because clients split the names of hosts at the first dash. */
export function wireId(id: string): string {
  return id.replaceAll("-", "");
}

/** The id of a client, with or without dashes; null when it is none. */
export function idOfWire<Id extends ReturnType<typeof parseUuid>>(text: string): Id | null {
  return parseUuid<NonNullable<Id>>(text.replace(shortExpression, "$1-$2-$3-$4-$5"));
}
