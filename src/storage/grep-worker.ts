import { ApiError, type ErrorBody } from "../domain/errors.ts";
import { type GrepOutcome, type GrepRequest, grep } from "./grep.ts";

/** What comes back from the thread. */
export type GrepReply = { readonly outcome: GrepOutcome } | { readonly error: ErrorBody } | { readonly cause: string };

// The thread that a search runs in: it takes one request, answers, and is then ended by who started it.
declare const self: Worker;

self.onmessage = async ({ data }: MessageEvent<GrepRequest>) => {
  self.postMessage(await answer(data));
};

async function answer(request: GrepRequest): Promise<GrepReply> {
  try {
    return { outcome: await grep(request) };
  } catch (error) {
    return error instanceof ApiError ? { error: error.body() } : { cause: Bun.inspect(error) };
  }
}
