import { ApiError, type ErrorBody } from "../domain/errors.ts";
import { type GrepOutcome, type GrepRequest, grep } from "./grep.ts";

/** What comes back from the thread. */
export type GrepReply = { readonly outcome: GrepOutcome } | { readonly error: ErrorBody } | { readonly cause: string };

// The thread that a search runs in: it takes one request, answers, and is then ended by who started it. After null,
// nobody waits for what it finds, and it answers as soon as it can.
declare const self: Worker;

const stopped = new AbortController();

self.onmessage = async ({ data }: MessageEvent<GrepRequest | null>) => {
  if (data === null) stopped.abort();
  else self.postMessage(await answer(data));
};

async function answer(request: GrepRequest): Promise<GrepReply> {
  try {
    return { outcome: await grep(request, stopped.signal) };
  } catch (error) {
    return error instanceof ApiError ? { error: error.body() } : { cause: Bun.inspect(error) };
  }
}
