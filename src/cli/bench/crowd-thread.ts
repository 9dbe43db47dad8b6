import type { Crowd } from "./crowd.ts";
import type { CrowdReply } from "./worker.ts";

/** In the executable all of the source is in one place, and entry points lie below it as they do in the source. */
const WORKER = new URL(Bun.isStandaloneExecutable ? "./cli/bench/worker.js" : "./worker.ts", import.meta.url);

/** Followers that read the events of an operation. Disposal disconnects them. */
export interface FollowerCrowd extends Disposable {
  /** Bytes that each of them received; resolves when all have seen the end of the operation. @throws Error */
  readonly receivedBytes: Promise<readonly number[]>;
}

/** Resolves when all of them have seen the start of the command. They have a thread of their own. @throws Error */
export async function startCrowd(crowd: Crowd): Promise<FollowerCrowd> {
  using stack = new DisposableStack();
  const worker = stack.adopt(new Worker(WORKER.href), (thread) => thread.terminate());
  const following = Promise.withResolvers<void>();
  const received = Promise.withResolvers<readonly number[]>();
  received.promise.catch(() => undefined);
  const fail = (text: string): void => {
    for (const { reject } of [following, received]) reject(new Error(text));
  };
  worker.onmessage = ({ data }: MessageEvent<CrowdReply>) => {
    if ("problem" in data) fail(data.problem);
    else if ("receivedBytes" in data) received.resolve(data.receivedBytes);
    else following.resolve();
  };
  worker.onerror = ({ message }) => fail(`the thread of the followers failed: ${message}`);
  worker.postMessage(crowd);
  await following.promise;
  const owned = stack.move();
  return { receivedBytes: received.promise, [Symbol.dispose]: () => owned.dispose() };
}
