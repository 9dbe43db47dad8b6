import { LIMIT_DEFAULT, LIMIT_MAX } from "../domain/listing.ts";
import type { ApiClient } from "./client.ts";
import { integerOption, UsageError } from "./command.ts";
import type { Io } from "./io.ts";

/** Options of commands that list what comes in pages, newest first. */
export const PAGING_OPTIONS = {
  since: { type: "string", value: "TIME", doc: "made at or after this: ISO 8601, or an age such as 15m, 2h, 3d" },
  until: { type: "string", value: "TIME", doc: "made at or before this" },
  limit: { type: "string", value: "COUNT", doc: `at most this many (default: ${LIMIT_DEFAULT})` },
  all: { type: "boolean", doc: "all of them" },
} as const;

interface PagingValues {
  readonly since?: string | undefined;
  readonly until?: string | undefined;
  readonly limit?: string | undefined;
  readonly all?: boolean | undefined;
}

interface Listed {
  readonly created_at: string;
}

export interface ListingRequest {
  readonly client: ApiClient;
  readonly path: string;
  /** filters beside those of `options` */
  readonly filters: Readonly<Record<string, string | boolean | undefined>>;
  readonly options: PagingValues;
  readonly io: Io;
  /** what no two items share */
  readonly keyOf: string;
}

/** Lists page by page, as much as the options ask for. @throws UsageError */
export async function listed<T extends Listed>(request: ListingRequest): Promise<T[]> {
  const { client, path, filters, options, io, keyOf } = request;
  const given = integerOption("limit", options.limit, 1);
  if (given !== undefined && options.all === true) throw new UsageError("--limit and --all exclude each other");
  const wanted = options.all === true ? Number.POSITIVE_INFINITY : (given ?? LIMIT_DEFAULT);
  const items = new Map<unknown, T>();
  let { until } = options;
  for (let offset = 0; items.size < wanted; ) {
    const limit = Math.min(LIMIT_MAX, wanted - items.size);
    const query = { ...filters, since: options.since, until, limit, ...(offset > 0 ? { offset } : {}) };
    const page = await client.json<T[]>("GET", path, { query });
    for (const item of page) items.set((item as Record<string, unknown>)[keyOf], item);
    offset += page.length;
    // What is made while we read would push the rest along.
    until = [...items.values()][0]?.created_at ?? until;
    if (page.length < limit) break;
  }
  if (given === undefined && items.size === wanted) {
    io.stderr(`these are the newest ${wanted}; --all lists everything\n`);
  }
  return [...items.values()];
}
