import { type Follower, follow } from "./follow.ts";
import type { LoadTarget } from "./load.ts";

/** Followers of the events of one instance. */
export interface Crowd {
  readonly target: LoadTarget;
  readonly count: number;
}

const START = "event: spawn\n";
const END = "event: completion\n";
/** More than the last event and the framing behind it. */
const END_BYTES = 1024;

/**
 * Follows until every follower has seen the end of the instance, and returns the bytes that each received.
 * @param onReady called when all have seen the start of the command
 */
export async function followTogether({ target, count }: Crowd, onReady: () => void): Promise<number[]> {
  using stack = new DisposableStack();
  const followers = Array.from({ length: count }, () => new CountingFollower());
  await Promise.all(followers.map(async (each) => stack.use(await each.start(target))));
  await Promise.all(followers.map(({ started }) => started));
  onReady();
  return await Promise.all(followers.map(({ receivedBytes }) => receivedBytes));
}

/** Counts received bytes. It parses only the beginning and the end: the last event is short. */
class CountingFollower {
  readonly #started = Promise.withResolvers<void>();
  readonly #complete = Promise.withResolvers<number>();
  #hasStarted = false;
  #bytes = 0;
  #text = "";

  /** Resolves when it has seen the start of the command. */
  get started(): Promise<void> {
    return this.#started.promise;
  }

  get receivedBytes(): Promise<number> {
    return this.#complete.promise;
  }

  async start(target: LoadTarget): Promise<Follower> {
    const follower = await follow(target, (bytes) => this.#take(bytes));
    // Each is awaited only when the one before it has resolved.
    for (const { promise, reject } of [this.#started, this.#complete]) {
      promise.catch(() => undefined);
      void follower.closed.then(() => reject(new Error("a follower was cut off")));
    }
    return follower;
  }

  #take(bytes: Buffer): void {
    this.#bytes += bytes.byteLength;
    const from = this.#hasStarted ? Math.max(0, bytes.byteLength - END_BYTES) : 0;
    this.#text += bytes.toString("latin1", from);
    if (!this.#hasStarted && this.#text.includes(START)) {
      this.#hasStarted = true;
      this.#started.resolve();
    }
    if (this.#text.includes(END)) this.#complete.resolve(this.#bytes);
    if (this.#hasStarted) this.#text = this.#text.slice(-END_BYTES);
  }
}
