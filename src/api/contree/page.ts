import { LIMIT_DEFAULT } from "../../domain/tree/listing.ts";
import type { ListRequest } from "../../service/parts.ts";
import { jsonPieces } from "../output/json-stream.ts";
import { JSON_TYPE, type Reply } from "../reply.ts";
import { streamed } from "../stream/text.ts";

/** Seconds since the epoch; a Date cannot hold more digits. */
const EPOCH_SECONDS = /^\d{1,12}$/;

/** The page of a listing that a query requests. */
export function pageOf({ limit = LIMIT_DEFAULT, offset = 0, since, until }: Partial<ListRequest>): ListRequest {
  return { limit, offset, since: boundOf(since), until: boundOf(until) };
}

/** A bound of time in a form that `parseTimeBound` reads. */
function boundOf(text: string | undefined): string | undefined {
  return text !== undefined && EPOCH_SECONDS.test(text) ? new Date(Number(text) * 1000).toISOString() : text;
}

/**
 * The reply with a page, in which iterables become arrays. A long one is sent in chunks: some clients refuse an answer that
 * announces more than 64 KiB.
 */
export async function pageReply(value: unknown): Promise<Reply> {
  return await streamed(JSON_TYPE, jsonPieces(value));
}
