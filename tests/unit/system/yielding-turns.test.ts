import { expect, test } from "bun:test";
import { setImmediate } from "node:timers/promises";
import { YieldingTurns } from "../../../src/system/yielding-turns.ts";

/** A clock that advances only by the work done, and work of a cost in `milliseconds`. */
class Workload {
  nowMs = 1000;
  doneMs = 0;
  readonly turns = new YieldingTurns(() => this.nowMs);

  async work(owner: unknown, costMs: number, count: number): Promise<void> {
    for (let n = 0; n < count; n++) {
      const turn = this.turns.take(owner);
      if (turn !== undefined) await turn;
      this.nowMs += costMs;
      this.doneMs += costMs;
    }
  }
}

test("work begins at once if no caller waits, a few times per turn of the event loop", async () => {
  const { turns } = new Workload();
  const [first, second] = [turns.take("a"), turns.take("a")];
  expect([first, second]).toEqual([undefined, undefined]);
  const calls = Array.from({ length: 100 }, () => turns.take("a"));
  const waiting = calls.filter((turn) => turn !== undefined);
  expect(waiting.length).toBeGreaterThan(90);
  await Promise.all(waiting);
});

test("work is called at once if no caller waits, and otherwise after the waiting ones", async () => {
  const { turns } = new Workload();
  const order: number[] = [];
  for (let n = 0; n < 100; n++) turns.call("a", () => order.push(n));
  expect(order.length).toBeGreaterThan(0);
  expect(order.length).toBeLessThan(10);
  const last = turns.take("a");
  expect(last).toBeInstanceOf(Promise);
  await last;
  expect(order).toEqual(Array.from({ length: 100 }, (_, n) => n));
});

test("no turn of the event loop takes much longer than a slice, for work of any cost", async () => {
  for (const costMs of [0.02, 0.4, 3]) {
    const load = new Workload();
    let isDone = false;
    const work = load.work("a", costMs, 300).then(() => {
      isDone = true;
    });
    let longestMs = 0;
    for (let turn = 0; !isDone; turn++) {
      const before = load.nowMs;
      await setImmediate();
      // The first turns measure the cost.
      if (turn > 5) longestMs = Math.max(longestMs, load.nowMs - before);
    }
    await work;
    expect(longestMs).toBeLessThan(Math.max(2.5, 1.1 * costMs));
  }
});

test("work gets all the time that is available, and only its share while other work runs", async () => {
  const alone = new Workload();
  await alone.work("a", 0.5, 2000);
  expect(alone.nowMs).toBe(1000 + alone.doneMs);

  const shared = new Workload();
  let isDone = false;
  const work = shared.work("a", 0.5, 200).then(() => {
    isDone = true;
  });
  while (!isDone) {
    shared.turns.yield();
    shared.nowMs += 0.1;
    await setImmediate();
  }
  await work;
  expect(shared.doneMs / (shared.nowMs - 1000)).toBeLessThan(0.3);
});

test("owners take turns, and the calls for one resolve in their order", async () => {
  const { turns } = new Workload();
  const order: string[] = [];
  const calls = ["a1", "a2", "a3", "a4", "a5", "a6", "a7", "b1", "b2"].map(async (name) => {
    const turn = turns.take(name[0]);
    if (turn !== undefined) await turn;
    order.push(name);
  });
  await Promise.all(calls);
  expect(order.filter((name) => name.startsWith("a"))).toEqual(["a1", "a2", "a3", "a4", "a5", "a6", "a7"]);
  expect(order.indexOf("b1")).toBeLessThan(order.indexOf("a6"));
});
