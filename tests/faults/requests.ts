import type { Appliance } from "../support/appliance/appliance.ts";

const REQUEST_MS_MAX = 90_000;
/** Temporary refusals: the queue or the disk is full, or no machine can run yet. */
export const BUSY = [429, 503, 507];

export type Answer = { readonly status: number; readonly text: string } | null;

/** Requests to an appliance that does not always answer. */
export class Requests {
  readonly #appliance: Appliance;
  readonly #problems: string[];
  /** number of answers, by request */
  readonly done: Record<string, number> = {};

  /** @param problems gets answers that no fault explains */
  constructor(appliance: Appliance, problems: string[]) {
    this.#appliance = appliance;
    this.#problems = problems;
  }

  /** Null without a complete answer. */
  async ask(what: string, path: string, init: RequestInit = {}): Promise<Answer> {
    try {
      const response = await this.#appliance.fetch(path, { ...init, signal: AbortSignal.timeout(REQUEST_MS_MAX) });
      const text = await response.text();
      this.done[what] = (this.done[what] ?? 0) + 1;
      if (response.status >= 500 && !BUSY.includes(response.status)) {
        this.#problems.push(`${init.method ?? "GET"} ${path}: ${response.status} ${text}`);
      }
      return { status: response.status, text };
    } catch (error) {
      if ((error as Error).name === "TimeoutError") {
        this.#problems.push(`${path} did not answer within ${REQUEST_MS_MAX} ms`);
      }
      return null;
    }
  }

  async post(what: string, path: string, body: object): Promise<Answer> {
    return await this.ask(what, path, { method: "POST", ...json(body) });
  }
}

export function json(body: object): RequestInit {
  return { headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
}
