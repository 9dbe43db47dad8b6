import { given } from "../domain/given.ts";
import { LIMIT_DEFAULT, LIMIT_MAX } from "../domain/tree/listing.ts";
import { integerOption, UsageError } from "./command.ts";
import type { Io } from "./io.ts";

/** Options of commands that list objects, newest first. */
export const PAGING_OPTIONS = {
  since: {
    type: "string",
    value: "TIME",
    doc: "created at or after this time: ISO 8601, or an age such as 15m, 2h, 3d",
  },
  until: { type: "string", value: "TIME", doc: "created at or before this time" },
  limit: { type: "string", value: "COUNT", doc: `at most this many (default: ${LIMIT_DEFAULT})` },
  all: { type: "boolean", doc: "list everything" },
} as const;

interface PagingValues {
  readonly since?: string | undefined;
  readonly until?: string | undefined;
  readonly limit?: string | undefined;
  readonly all?: boolean | undefined;
}

/** Query of one page. */
interface Page {
  readonly since?: string;
  readonly until?: string;
  readonly limit: number;
  readonly offset?: number;
}

export interface ListingRequest<Item> {
  readonly read: (page: Page) => Promise<readonly Item[]>;
  readonly options: PagingValues;
  readonly io: Io;
  /** the unique key of an item */
  readonly keyOf: (item: Item) => string;
}

/** Lists page by page, up to the limit of the options. @throws UsageError */
export async function listed<Item extends { readonly created_at: string }>(
  request: ListingRequest<Item>,
): Promise<Item[]> {
  const { read, options, io, keyOf } = request;
  const count = integerOption("limit", options.limit, 1);
  if (count !== undefined && options.all === true) throw new UsageError("--limit and --all exclude each other");
  const countMax = options.all === true ? Number.POSITIVE_INFINITY : (count ?? LIMIT_DEFAULT);
  const items = new Map<string, Item>();
  let { until } = options;
  for (let offset = 0; items.size < countMax; ) {
    const limit = Math.min(LIMIT_MAX, countMax - items.size);
    const page = await read({ ...given({ since: options.since, until }), limit, ...(offset > 0 ? { offset } : {}) });
    for (const item of page) items.set(keyOf(item), item);
    offset += page.length;
    // Without this bound, new objects would shift the pages.
    until = [...items.values()][0]?.created_at ?? until;
    if (page.length < limit) break;
  }
  if (count === undefined && items.size === countMax) {
    io.stderr(`these are the newest ${countMax}; --all lists everything\n`);
  }
  return [...items.values()];
}
