import { type Follower, follow } from "./follow.ts";
import type { LoadTarget } from "./load.ts";

/** Followers of the events of one operation. */
export interface Crowd {
  readonly kind: "crowd";
  readonly target: LoadTarget;
  readonly count: number;
}

const END = "event: completion\n";

/**
 * Follows until every follower has seen the end of the operation, and returns the bytes that each received.
 * @param onReady called when all follow
 */
export async function followTogether({ target, count }: Crowd, onReady: () => void): Promise<number[]> {
  using stack = new DisposableStack();
  const followers = Array.from({ length: count }, () => new CountingFollower());
  await Promise.all(followers.map(async (each) => stack.use(await each.start(target))));
  onReady();
  return await Promise.all(followers.map(({ receivedBytes }) => receivedBytes));
}

/** Counts what comes. It looks only at the end of it: the last event is a short one. */
class CountingFollower {
  readonly #complete = Promise.withResolvers<number>();
  #bytes = 0;
  #last = "";

  get receivedBytes(): Promise<number> {
    return this.#complete.promise;
  }

  async start(target: LoadTarget): Promise<Follower> {
    // An early end is told by `start` or by `receivedBytes`, whichever is awaited then.
    this.receivedBytes.catch(() => undefined);
    const follower = await follow(target, (bytes) => this.#take(bytes));
    void follower.closed.then(() => this.#complete.reject(new Error("a follower was cut off")));
    return follower;
  }

  #take(bytes: Buffer): void {
    this.#bytes += bytes.byteLength;
    this.#last = (this.#last + bytes.toString("latin1", Math.max(0, bytes.byteLength - LOOKED_AT_BYTES))).slice(
      -LOOKED_AT_BYTES,
    );
    if (this.#last.includes(END)) this.#complete.resolve(this.#bytes);
  }
}

/** More than the last event and the framing behind it. */
const LOOKED_AT_BYTES = 1024;
