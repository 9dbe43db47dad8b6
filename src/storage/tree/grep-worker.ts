import { ApiError, type ErrorBody } from "../../domain/errors.ts";
import type { Cancellation } from "../pacer.ts";
import { type GrepOutcome, type GrepRequest, grep } from "./grep.ts";

/** The answer of the thread. */
export type GrepReply = { readonly outcome: GrepOutcome } | { readonly error: ErrorBody } | { readonly cause: string };

/** The task of a thread. */
export interface GrepTask {
  readonly request: GrepRequest;
  /** one number in shared memory; when it is not zero, the search must stop */
  readonly stop: SharedArrayBuffer;
}

// The thread of one search. It answers one task; then its creator terminates it. A message could not reach it while it
// computes, so it checks shared memory to learn that it must stop.
declare const self: Worker;

self.onmessage = async ({ data }: MessageEvent<GrepTask>) => self.postMessage(await answer(data));

async function answer({ request, stop }: GrepTask): Promise<GrepReply> {
  const flag = new Int32Array(stop);
  const cancellation: Cancellation = {
    throwIfAborted: () => {
      if (Atomics.load(flag, 0) !== 0) throw new Error("the search was cancelled");
    },
  };
  try {
    return { outcome: await grep(request, cancellation) };
  } catch (error) {
    return error instanceof ApiError ? { error: error.body() } : { cause: Bun.inspect(error) };
  }
}
