import { answerOf, type Client } from "../../client/client.ts";
import { ResponseError } from "../../client/errors.ts";
import type { Io } from "../io.ts";

/** Times of the warnings before the end, in `milliseconds`. */
const WARNINGS_MS = [300_000, 60_000] as const;
/** Longest wait of a timer, in `milliseconds`; more would fire at once. */
const TIMER_MS_MAX = 2_147_483_647;
const MINUTE_MS = 60_000;

export interface TimeWarningsOptions {
  readonly client: Client;
  readonly io: Io;
  /** of the instance */
  readonly id: string;
  /** from the command's start on, in `seconds` */
  readonly limitSeconds: number;
  /** true: the appliance does not allow more */
  readonly isLongest: boolean;
}

/** Warns a person at a terminal that the time of the session is nearly over. */
export class TimeWarnings implements Disposable {
  readonly #options: TimeWarningsOptions;
  #limitSeconds: number;
  #timer: Timer | undefined;

  constructor(options: TimeWarningsOptions) {
    this.#options = options;
    this.#limitSeconds = options.limitSeconds;
  }

  /** @param startedAtMs when the command began, in `milliseconds` since the epoch */
  start(startedAtMs: number): void {
    this.#schedule(startedAtMs, WARNINGS_MS[0]);
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
  }

  /** Waits for the next warning. */
  #schedule(startedAtMs: number, fromMs: number): void {
    const leftMs = startedAtMs + this.#limitSeconds * 1000 - Date.now();
    const next = WARNINGS_MS.find((beforeMs) => beforeMs <= fromMs && beforeMs < leftMs);
    if (next === undefined) return;
    const fire = async () => {
      if (startedAtMs + this.#limitSeconds * 1000 - Date.now() > next) return this.#schedule(startedAtMs, fromMs);
      if (await this.#hasMore()) return this.#schedule(startedAtMs, WARNINGS_MS[0]);
      this.#warn(next);
      this.#schedule(startedAtMs, next - 1);
    };
    this.#timer = setTimeout(() => void fire(), Math.min(leftMs - next, TIMER_MS_MAX));
  }

  /** Reads the present limit, which another client may have extended: a request for less is refused with that limit. */
  async #hasMore(): Promise<boolean> {
    const { client, id } = this.#options;
    const timeout = this.#limitSeconds;
    try {
      await answerOf(client.v1.instances({ uuid: encodeURIComponent(id) }).patch({ timeout }));
    } catch (error) {
      const longer = error instanceof ResponseError ? error.details["timeout"] : undefined;
      if (typeof longer !== "number" || longer <= timeout) return false;
      this.#limitSeconds = longer;
      return true;
    }
    return false;
  }

  /**
   * Writes into the first line of the screen, with a bell, and restores the cursor: the program in the terminal is not
   * involved, and may draw over the line.
   */
  #warn(leftMs: number): void {
    const { io, id, isLongest } = this.#options;
    const minutes = Math.round(leftMs / MINUTE_MS);
    const help = isLongest ? "its files are kept" : `more time: coppice op extend ${id} 30m`;
    const text = `coppice: this session ends in ${minutes} min; ${help}`;
    io.stderr(`\x1b7\x1b[1;1H\x1b[7m${text}\x1b[0m\x1b[K\x1b8\x07`);
  }
}
