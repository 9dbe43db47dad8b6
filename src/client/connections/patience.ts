import { pause } from "../pause.ts";

/** Limits of the wait for an appliance that is being restarted, in `milliseconds`. */
export interface PatienceOptions {
  /** for one that has answered before */
  readonly knownMs?: number;
  /** for one that has not answered yet, and may not run at all */
  readonly unknownMs?: number;
}

const KNOWN_MS = 10_000;
const UNKNOWN_MS = 2000;
const RETRY_MS = 250;
/** Codes of runtimes for a connection that nothing accepted, so that the request was not sent. */
export const REFUSED_CODES: ReadonlySet<unknown> = new Set(["ECONNREFUSED", "ConnectionRefused"]);
/** Codes for a connection that was lost. The request may have been served. */
const LOST: ReadonlySet<unknown> = new Set(["ECONNRESET", "ConnectionClosed", "EPIPE", "UND_ERR_SOCKET"]);
/** Methods that change nothing. */
const READING: ReadonlySet<string> = new Set(["GET", "HEAD"]);
const CAUSES_COUNT_MAX = 4;

/**
 * Repeats requests while their appliance is being restarted: those that were not sent, those that it puts off until it has opened
 * a machine, and those that only read. A body that is a stream is sent once. Browsers do not tell why a request failed, so
 * nothing is repeated there.
 */
export class Patience {
  readonly #knownMs: number;
  readonly #unknownMs: number;
  #isKnown = false;

  constructor({ knownMs = KNOWN_MS, unknownMs = UNKNOWN_MS }: PatienceOptions = {}) {
    this.#knownMs = knownMs;
    this.#unknownMs = unknownMs;
  }

  /** The answer to a request; when the time is up, the last one, or the error of the last one. @throws as `send` does */
  async fetch(init: RequestInit, send: () => Promise<Response>): Promise<Response> {
    const startedAt = performance.now();
    for (;;) {
      const outcome = await send().catch((error: unknown) => ({ error }));
      if (outcome instanceof Response) this.#isKnown = true;
      const isUp = performance.now() - startedAt > (this.#isKnown ? this.#knownMs : this.#unknownMs);
      const signal = init.signal ?? undefined;
      const repeats = !isUp && signal?.aborted !== true && !(init.body instanceof ReadableStream);
      if (!repeats || !(await canRepeat(outcome, init.method ?? "GET"))) {
        if (outcome instanceof Response) return outcome;
        throw outcome.error;
      }
      if (outcome instanceof Response) await outcome.body?.cancel();
      await pause(RETRY_MS, signal);
    }
  }
}

async function canRepeat(outcome: Response | { readonly error: unknown }, method: string): Promise<boolean> {
  if (outcome instanceof Response) return outcome.status === 503 && (await isPutOff(outcome.clone() as Response));
  const codes = codesOf(outcome.error);
  return codes.some((code) => REFUSED_CODES.has(code)) || (READING.has(method) && codes.some((code) => LOST.has(code)));
}

/** True when the request was not served because its machine is not opened yet. */
async function isPutOff(response: Response): Promise<boolean> {
  try {
    const body = (await response.json()) as { details?: { reason?: unknown } } | null;
    return body?.details?.reason === "adopting";
  } catch {
    // The answer of another server.
    return false;
  }
}

/** The codes of an error and of its causes. */
function codesOf(error: unknown): unknown[] {
  const codes: unknown[] = [];
  for (let one = error; one instanceof Error && codes.length < CAUSES_COUNT_MAX; one = one.cause) {
    codes.push((one as NodeJS.ErrnoException).code);
  }
  return codes;
}
