import { given } from "../domain/given.ts";
import type { CallOptions, Client } from "./client.ts";
import { linesOf } from "./connections/chunks.ts";
import { AnswerError, UnreachableError } from "./errors.ts";
import { readEvents } from "./events.ts";
import type { BranchRow, Change } from "./types.ts";

export interface BranchesOptions {
  /** number of images, the newest; the default is the largest number that the appliance allows */
  readonly limit?: number;
  /** only images that are older than this one */
  readonly before?: string;
  readonly signal?: AbortSignal;
}

/**
 * The rows of the branches on arrival, many at a time: operations that have not ended, images with parents first, and the
 * end.
 * @throws ResponseError, AnswerError if the end is missing, UnreachableError if the connection breaks, the reason of `signal`
 */
export async function* readBranches(
  client: Client,
  { limit, before, signal }: BranchesOptions = {},
): AsyncGenerator<readonly BranchRow[], void, undefined> {
  const options: CallOptions = { query: { limit, before }, ...given({ signal }) };
  const { body } = await client.call("GET", "/branches", options);
  if (body === null) throw new AnswerError("the branches have no rows");
  const failure = (error: Error): unknown =>
    signal?.aborted
      ? signal.reason
      : new UnreachableError(`the branches broke off: ${error.message}`, { cause: error });
  let isOver = false;
  for await (const lines of linesOf(body, failure)) {
    const rows = lines.map((line) => JSON.parse(line) as BranchRow);
    isOver ||= rows.at(-1)?.type === "end";
    yield rows;
  }
  if (!isOver) throw new AnswerError("the branches have no end");
}

/**
 * Changes of operations and images on arrival, until the caller leaves the loop. The first one is a `resync`: read the
 * branches then and after every further `resync`, and no change is missing.
 * @throws ResponseError, AnswerError, UnreachableError if the connection breaks, the reason of `signal`
 */
export async function* readChanges(
  client: Client,
  { signal }: { readonly signal?: AbortSignal } = {},
): AsyncGenerator<Change, void, undefined> {
  const options = given({ signal });
  for await (const { data } of readEvents(client, "/changes", options)) yield JSON.parse(data) as Change;
}
