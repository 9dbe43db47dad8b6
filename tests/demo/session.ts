import type { ImportResult, InstanceResult, Operation, OutputObject } from "../../src/client/types.ts";
import { sleepUnlessAborted } from "../../src/system/waiting.ts";
import type { Appliance } from "../support/appliance/appliance.ts";
import type { Screen } from "./screen.ts";

/** Longest wait for one operation, in `milliseconds`: the first run also waits for the probe of this host. */
const OPERATION_MS_MAX = 120_000;
const RETRY_SECONDS_DEFAULT = 1;
const READY_MS = 200;

/** A user with curl and the description of the interface: every request is shown. */
export class Session {
  readonly #appliance: Appliance;
  readonly #screen: Screen;
  readonly #signal: AbortSignal;

  constructor(appliance: Appliance, screen: Screen, signal: AbortSignal) {
    this.#appliance = appliance;
    this.#screen = screen;
    this.#signal = signal;
  }

  /** Sends and shows one request; any other status than `expected` ends the demonstration. */
  async request(expected: number, method: string, path: string, body?: object): Promise<Response> {
    this.#signal.throwIfAborted();
    const bodyText = body === undefined ? "" : ` ${JSON.stringify(body)}`;
    this.#screen.out(`${method} /v1${decodeURIComponent(path)}${bodyText}`);
    const init: RequestInit = { method, signal: this.#signal };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
      init.headers = { "content-type": "application/json" };
    }
    const response = await this.#appliance.fetch(path, init);
    if (response.status !== expected) {
      throw new Error(`${method} /v1${path} answered ${response.status}: ${await response.text()}`);
    }
    return response;
  }

  /** Waits until the appliance has found out how VMs run on this host, and returns their isolation. */
  async ready(): Promise<string> {
    this.#screen.out("GET /readyz");
    using _waiting = this.#screen.waiting("booting, saving and cloning a VM, to see what this host can do");
    const deadline = performance.now() + OPERATION_MS_MAX;
    for (;;) {
      const response = await fetch(`${this.#appliance.url}/readyz`, { signal: this.#signal });
      const { ready, isolation, reason } = (await response.json()) as {
        ready: boolean;
        isolation: string | null;
        reason: string;
      };
      if (ready) return isolation ?? "unknown";
      if (performance.now() > deadline) throw new Error(`not ready: ${reason}`);
      await sleepUnlessAborted(READY_MS, this.#signal);
      this.#signal.throwIfAborted();
    }
  }

  /** Imports an image and returns its uuid. */
  async importImage(registry: string, tag: string): Promise<ImportResult> {
    const response = await this.request(202, "POST", "/images/import", { registry, tag });
    return (await this.#follow(response, "importing")) as ImportResult;
  }

  /** Runs a shell expression in a new sandbox. */
  async run(image: string, command: string, more: object = {}): Promise<InstanceResult> {
    const response = await this.request(201, "POST", "/instances", { image, command, shell: true, ...more });
    return (await this.#follow(response, "running")) as InstanceResult;
  }

  async names(image: string, path: string): Promise<string[]> {
    const response = await this.request(200, "GET", `/inspect/${image}/list?path=${encodeURIComponent(path)}`);
    const { items } = (await response.json()) as { items: { name: string }[] };
    return items.map(({ name }) => name).sort();
  }

  async download(image: string, path: string): Promise<string> {
    const response = await this.request(200, "GET", `/inspect/${image}/download?path=${encodeURIComponent(path)}`);
    return await response.text();
  }

  async tag(image: string, tag: string): Promise<void> {
    await this.request(200, "PATCH", `/images/${image}/tag`, { tag });
  }

  /** Polls the operation that Location names, as often as Retry-After says, until it has ended. */
  async #follow(started: Response, what: string): Promise<unknown> {
    const location = started.headers.get("location") ?? "";
    this.#screen.back(`${started.status} ${started.statusText}, Location: ${location}`);
    const path = location.replace(/^.*\/v1/, "");
    const deadline = performance.now() + OPERATION_MS_MAX;
    let last = "";
    using _waiting = this.#screen.waiting(what);
    while (performance.now() < deadline) {
      const response = await this.#appliance.fetch(path, { signal: this.#signal });
      const operation = (await response.json()) as Operation;
      if (operation.status === "SUCCESS") return operation.result;
      if (operation.status === "FAILED" || operation.status === "CANCELLED") {
        throw new Error(`operation ${operation.id} ended ${operation.status}: ${JSON.stringify(operation.error)}`);
      }
      const retryAfter = Number(response.headers.get("retry-after") ?? RETRY_SECONDS_DEFAULT);
      if (operation.status !== last) this.#screen.back(`${operation.status}, Retry-After: ${retryAfter}`);
      last = operation.status;
      await sleepUnlessAborted(retryAfter * 1000, this.#signal);
      this.#signal.throwIfAborted();
    }
    throw new Error(`operation ${path} did not end within ${OPERATION_MS_MAX / 1000} s`);
  }
}

export function outputText(output: OutputObject | undefined): string {
  return Buffer.from(output?.content ?? "", output?.encoding === "base64" ? "base64" : "latin1").toString("utf8");
}
