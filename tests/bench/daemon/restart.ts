import { interleaved } from "../../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../../src/cli/bench/row.ts";
import { startProcess } from "../../../src/client/processes.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { freePort } from "../../support/free-port.ts";
import { pause, until } from "../../support/waiting.ts";
import { BenchHost, FLAGS } from "../host.ts";

const RUNNING_COUNT = 20;
const RUNNING_COUNT_QUICK = 6;
/** Writes a line every few milliseconds; the others do it every second, as sandboxes do that mostly wait. */
const TICKS = "while :; do echo tick; sleep 0.02; done";
const SLOW_TICKS = "while :; do echo tick; sleep 1; done";
const MEMORY_BYTES = 134_217_728;
const RETRY_MS = 5;
const FOLLOW_MS_MAX = 60_000;
/** Events that are read before each end of the daemon. */
const EVENTS_BEFORE_COUNT = 20;

/** The silence at a follower while the daemon is killed and starts again, against the start of a daemon that has none. */
export async function* restartRows(host: BenchHost): AsyncGenerator<Finding> {
  const count = host.quick ? RUNNING_COUNT_QUICK : RUNNING_COUNT;
  const flags = [...FLAGS, "--listen-port", String(await freePort()), "--vm-cpu-budget", "64"];
  await using busy = await BenchHost.start(host.quick, { flags });
  const { appliance, target } = busy;
  const sandboxes: string[] = [];
  for (let number = 0; number < count; number++) {
    const { uuid } = await target.open({ resources: { memory_bytes: MEMORY_BYTES } });
    const command = number === 0 ? TICKS : SLOW_TICKS;
    await startProcess(target.client, { sandbox: uuid }, { command, shell: true });
    sandboxes.push(uuid);
  }
  using follower = new Follower(appliance, sandboxes[0] as string);
  const values = await interleaved(host.target.rounds(15, 5), {
    kill: async () => {
      await follower.more();
      return await follower.silenceDuring(async () => {
        await appliance.down("SIGKILL");
        await appliance.up();
      });
    },
    start: async () => {
      const durationMs = await host.restart();
      await host.target.poolFull();
      return durationMs;
    },
  });
  yield rowOf({
    name: `silence at a follower, with ${count} running instances, when the daemon is killed and starts again`,
    from: "last event read before the end of the daemon",
    to: "next event read, by Last-Event-ID",
    unit: "ms",
    values: values.kill,
    against: { name: "start of a daemon that has no instance, to listening", values: values.start },
    atMost: 2,
  });
}

/** Follows a sandbox by Last-Event-ID, and connects again at once. */
class Follower implements Disposable {
  readonly #appliance: Appliance;
  readonly #path: string;
  readonly #leaving = new AbortController();
  #lastId = -1;
  #lastMs = 0;
  #longestMs = 0;

  constructor(appliance: Appliance, sandbox: string) {
    this.#appliance = appliance;
    this.#path = `/sandboxes/${sandbox}/events?follow=true`;
    void this.#run();
  }

  /** Waits for some more events. */
  async more(): Promise<void> {
    const from = this.#lastId;
    await until("the follower reads events", () => this.#lastId >= from + EVENTS_BEFORE_COUNT, FOLLOW_MS_MAX);
  }

  /** Longest time between two events during `work` and until the next event after it, in `milliseconds`. */
  async silenceDuring(work: () => Promise<void>): Promise<number> {
    this.#longestMs = 0;
    await work();
    await this.more();
    return this.#longestMs;
  }

  [Symbol.dispose](): void {
    this.#leaving.abort();
  }

  async #run(): Promise<void> {
    const { signal } = this.#leaving;
    while (!signal.aborted) {
      await this.#follow().catch(() => undefined);
      await pause("before the next try", RETRY_MS);
    }
  }

  async #follow(): Promise<void> {
    const headers: Record<string, string> = this.#lastId < 0 ? {} : { "last-event-id": String(this.#lastId) };
    const response = await this.#appliance.fetch(this.#path, { headers, signal: this.#leaving.signal });
    if (response.status !== 200) return;
    const decoder = new TextDecoder();
    let text = "";
    for await (const chunk of response.body as ReadableStream<Uint8Array>) {
      text += decoder.decode(chunk, { stream: true });
      const ids = [...text.slice(0, text.lastIndexOf("\n\n") + 2).matchAll(/^id: (\d+)$/gm)];
      text = text.slice(text.lastIndexOf("\n\n") + 2);
      for (const [, id] of ids) {
        if (Number(id) !== this.#lastId + 1) throw new Error(`event ${id} follows ${this.#lastId}`);
        this.#lastId = Number(id);
      }
      if (ids.length === 0) continue;
      const now = performance.now();
      if (this.#lastMs > 0) this.#longestMs = Math.max(this.#longestMs, now - this.#lastMs);
      this.#lastMs = now;
    }
  }
}
