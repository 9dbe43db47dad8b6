import { ApiError } from "../../domain/errors.ts";

const WINDOW_MS = 60_000;
/** Failed attempts of one address in a window. */
const ATTEMPTS_COUNT_MAX = 10;
/** Failed attempts of all addresses in a window, which bounds the memory for them. */
const ALL_ATTEMPTS_COUNT_MAX = 6000;

/**
 * Bounds failed attempts to sign in. Tokens cannot be guessed: this bounds the cost of attempts, and the lines in the log.
 * An attempt counts as failed until it has succeeded, so concurrent attempts count, too.
 */
export class FailedSignIns {
  readonly #now: () => number;
  readonly #counts = new Map<string, number>();
  #total = 0;
  #endsAtMs = 0;

  /** @param now a monotonic clock, in `milliseconds` */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  /**
   * Begins an attempt; the result is called when it has succeeded.
   * @param address IP address of the client
   * @throws ApiError `too_many_requests`
   */
  begin(address: string): () => void {
    const nowMs = this.#now();
    if (nowMs >= this.#endsAtMs) {
      this.#counts.clear();
      this.#total = 0;
      this.#endsAtMs = nowMs + WINDOW_MS;
    }
    const owner = networkOf(address);
    const count = this.#counts.get(owner) ?? 0;
    if (count >= ATTEMPTS_COUNT_MAX || this.#total >= ALL_ATTEMPTS_COUNT_MAX) {
      const seconds = Math.max(1, Math.ceil((this.#endsAtMs - nowMs) / 1000));
      throw new ApiError("too_many_requests", "too many attempts to sign in failed: wait a minute", {
        retry_after_seconds: seconds,
      });
    }
    this.#counts.set(owner, count + 1);
    this.#total += 1;
    const endsAtMs = this.#endsAtMs;
    return () => {
      if (endsAtMs !== this.#endsAtMs) return;
      this.#total -= 1;
      const left = (this.#counts.get(owner) ?? 1) - 1;
      if (left > 0) this.#counts.set(owner, left);
      else this.#counts.delete(owner);
    };
  }
}

/**
 * The network in which one client can use any address: the first 64 bits of an IPv6 address, or 127.0.0.0/8 for an address
 * of this machine.
 */
export function networkOf(address: string): string {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1];
  const plain = mapped ?? address;
  if (plain.startsWith("127.")) return "127";
  if (!plain.includes(":")) return plain;
  const [head = "", tail] = address.toLowerCase().split("::");
  const first = head === "" ? [] : head.split(":");
  const last = tail === undefined || tail === "" ? [] : tail.split(":");
  const zeros =
    tail === undefined ? [] : Array.from({ length: Math.max(0, 8 - first.length - last.length) }, () => "0");
  return [...first, ...zeros, ...last].slice(0, 4).join(":");
}
