import { linesOf } from "../../client/connections/chunks.ts";
import { Problem } from "../data/problem.ts";
import { Slicer } from "../data/slicer.ts";

/** Header fields of a request for {@link itemsOf}. */
export const ITEMS_ACCEPTED = { accept: "application/x-ndjson" } as const;

/** Lines that are parsed between two looks at the clock. */
const PART_LINES = 256;

/** Items of an answer. `end` is its last line, which comes with the last items. */
interface Items<Item, End> {
  readonly items: readonly Item[];
  readonly end: End | null;
}

/**
 * The items of a response with one JSON object per line, as they arrive. Yields to the page in between.
 * @throws Problem when the end is missing; the reason of the signal
 */
export async function* itemsOf<Item extends object, End>(
  { body }: Response,
  signal: AbortSignal,
): AsyncGenerator<Items<Item, End>, void, undefined> {
  const slicer = new Slicer({ signal });
  for await (const lines of body === null ? [] : linesOf(body)) {
    for (let at = 0; at < lines.length; at += PART_LINES) {
      const rows = lines.slice(at, at + PART_LINES).map((line) => JSON.parse(line) as Item);
      const last: { readonly type?: unknown } = rows.at(-1) ?? {};
      const isOver = last.type === "end";
      yield { items: isOver ? rows.slice(0, -1) : rows, end: isOver ? (last as End) : null };
      if (isOver) return;
      await slicer.rest();
    }
  }
  throw new Problem("The answer broke off.", { code: "unreachable" });
}
