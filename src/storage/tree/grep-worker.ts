import { ApiError, type ErrorBody } from "../../domain/errors.ts";
import type { Wanted } from "../pacer.ts";
import { type GrepOutcome, type GrepRequest, grep } from "./grep.ts";

/** What comes back from the thread. */
export type GrepReply = { readonly outcome: GrepOutcome } | { readonly error: ErrorBody } | { readonly cause: string };

/** What a thread is started with. */
export interface GrepTask {
  readonly request: GrepRequest;
  /** one number in memory that both threads share; once it is not zero, nobody waits for what the search finds */
  readonly stop: SharedArrayBuffer;
}

// The thread that a search runs in: it takes one task, answers, and is then ended by who started it. A message would not
// reach it while it computes, so that it looks at shared memory to learn that it is to stop.
declare const self: Worker;

self.onmessage = async ({ data }: MessageEvent<GrepTask>) => self.postMessage(await answer(data));

async function answer({ request, stop }: GrepTask): Promise<GrepReply> {
  const flag = new Int32Array(stop);
  const wanted: Wanted = {
    throwIfAborted: () => {
      if (Atomics.load(flag, 0) !== 0) throw new Error("nobody waits for the search");
    },
  };
  try {
    return { outcome: await grep(request, wanted) };
  } catch (error) {
    return error instanceof ApiError ? { error: error.body() } : { cause: Bun.inspect(error) };
  }
}
