import type { Database } from "../db/database.ts";
import { requestLines } from "../db/requests.ts";
import type { OperationId } from "../domain/ids.ts";
import { Pacer } from "../storage/pacer.ts";

/** Requests that are read in one turn of the event loop: about two milliseconds where all of them are long. */
export const REQUESTS_COUNT = 32;

/** As `requestLines`, in as many turns of the event loop as it needs. */
export async function pacedRequestLines(
  db: Database,
  ids: readonly OperationId[],
): Promise<ReadonlyMap<OperationId, string>> {
  const pacer = new Pacer();
  const lines = new Map<OperationId, string>();
  for (let at = 0; at < ids.length; at += REQUESTS_COUNT) {
    await pacer.yield();
    for (const [id, line] of requestLines(db, ids.slice(at, at + REQUESTS_COUNT))) lines.set(id, line);
  }
  return lines;
}
