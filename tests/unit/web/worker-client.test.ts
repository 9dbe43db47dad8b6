import { describe, expect, test } from "bun:test";
import { WorkerClient, type WorkerLike } from "../../../src/web/worker/client.ts";
import type { AnswerMessage, JobMessage, TextRequest } from "../../../src/web/worker/messages.ts";
import { throwing } from "../../support/failures.ts";

const REQUEST: TextRequest = { bytes: new ArrayBuffer(0), encoding: null, isLast: true };
const NO_DEADLINE_MS = 60_000;

/** A worker that answers when the test calls `answer`. */
class ScriptedWorker implements WorkerLike {
  onmessage: WorkerLike["onmessage"] = null;
  onerror: WorkerLike["onerror"] = null;
  readonly got: number[] = [];
  isTerminated = false;
  postMessage(message: unknown): void {
    this.got.push((message as JobMessage).id);
  }
  terminate(): void {
    this.isTerminated = true;
  }
  answer(message: AnswerMessage): void {
    this.onmessage?.call(this as unknown as Worker, { data: message } as MessageEvent);
  }
}

function scene() {
  const workers: ScriptedWorker[] = [];
  const client = new WorkerClient(() => {
    const worker = new ScriptedWorker();
    workers.push(worker);
    return worker;
  });
  const ask = (signal = new AbortController().signal, deadlineMs = NO_DEADLINE_MS) => {
    const answer = client.ask("text", REQUEST, { signal, deadlineMs });
    answer.catch(() => undefined);
    return answer;
  };
  return { workers, ask };
}

const reply = (id: number): AnswerMessage => ({ id, reply: { id } as never });

describe("the page's side of the worker", () => {
  test("starts the worker with the first job, and gives it one at a time", async () => {
    const { workers, ask } = scene();
    expect(workers).toHaveLength(0);
    const first = ask();
    const second = ask();
    expect(workers[0]?.got).toEqual([1]);
    workers[0]?.answer(reply(1));
    expect(await first).toEqual({ id: 1 } as never);
    expect(workers[0]?.got).toEqual([1, 2]);
    workers[0]?.answer({ id: 2, problem: "no such language" });
    expect(await throwing(second)).toThrow("no such language");
    expect(workers).toHaveLength(1);
  });

  test("withdraws a waiting job, and ends a running one with its worker", async () => {
    const { workers, ask } = scene();
    const [running, waiting] = [new AbortController(), new AbortController()];
    const [first, second, third] = [ask(running.signal), ask(waiting.signal), ask()];
    waiting.abort();
    expect(await throwing(second)).toThrow();
    expect(workers[0]?.isTerminated).toBe(false);
    running.abort();
    expect(await throwing(first)).toThrow();
    expect(workers[0]?.isTerminated).toBe(true);
    expect(workers[1]?.got).toEqual([3]);
    workers[1]?.answer(reply(3));
    expect(await third).toEqual({ id: 3 } as never);
  });

  test("ends a job that takes too long, and a worker that failed", async () => {
    const { workers, ask } = scene();
    expect(await throwing(ask(undefined, 1))).toThrow("too long");
    expect(workers[0]?.isTerminated).toBe(true);
    const next = ask();
    workers[1]?.onerror?.call(workers[1] as unknown as Worker, new ErrorEvent("error"));
    expect(await throwing(next)).toThrow("failed");
  });

  test("refuses a job when too many wait", () => {
    const { ask } = scene();
    for (let count = 0; count < 65; count += 1) void ask();
    expect(() => ask()).toThrow("at once");
  });
});
