import { describe, expect, test } from "bun:test";
import { costOf, Scheduler, sandboxCostOf, type Ticket } from "../../../../src/supervisor/operations/scheduler.ts";
import { throwing } from "../../../support/failures.ts";

const GIB = 1 << 30;
const small = { memoryBytes: GIB, vcpus: 1 };
const never = new AbortController().signal;

/** Admits and records the order in which tickets are handed out. */
function recorder(scheduler: Scheduler) {
  const order: string[] = [];
  const tickets = new Map<string, Ticket>();
  const admit = (name: string, account: string, cost = small, signal = never) =>
    scheduler.admit(account, cost, signal).then((ticket) => {
      order.push(name);
      tickets.set(name, ticket);
    });
  return { order, tickets, admit };
}
const settle = () => new Promise<void>((resolve) => setImmediate(resolve));

describe("scheduler", () => {
  test("admits work within the budget, and more when a ticket is disposed of", async () => {
    const scheduler = new Scheduler({ memoryBytes: 2 * GIB, vcpus: 8 }, () => 0);
    const { order, tickets, admit } = recorder(scheduler);
    for (const name of ["a", "b", "c"]) void admit(name, "one");
    await settle();
    expect(order).toEqual(["a", "b"]);
    tickets.get("a")?.[Symbol.dispose]();
    tickets.get("a")?.[Symbol.dispose]();
    await settle();
    expect(order).toEqual(["a", "b", "c"]);
    expect(scheduler.runningCount).toBe(2);
  });

  test("returns the share of the budget that each account holds", async () => {
    const scheduler = new Scheduler({ memoryBytes: 4 * GIB, vcpus: 8 }, () => 0);
    const { tickets, admit } = recorder(scheduler);
    void admit("a", "one");
    void admit("b", "one", { memoryBytes: 2 * GIB, vcpus: 3 });
    void admit("c", "two");
    void admit("d", "two", { memoryBytes: 2 * GIB, vcpus: 1 });
    await settle();
    expect(scheduler.heldBy("one")).toEqual({ memoryBytes: 3 * GIB, vcpus: 4 });
    expect(scheduler.heldBy("two")).toEqual(small);
    expect(scheduler.heldBy("three")).toEqual({ memoryBytes: 0, vcpus: 0 });
    for (const name of ["a", "b", "b"]) tickets.get(name)?.[Symbol.dispose]();
    await settle();
    expect(scheduler.heldBy("one")).toEqual({ memoryBytes: 0, vcpus: 0 });
    expect(scheduler.heldBy("two")).toEqual({ memoryBytes: 3 * GIB, vcpus: 2 });
    expect(scheduler.used).toEqual({ memoryBytes: 3 * GIB, vcpus: 2 });
  });

  test("admits several costs at once when all of them fit now and nothing of the account waits, and otherwise none", async () => {
    const scheduler = new Scheduler({ memoryBytes: 4 * GIB, vcpus: 8 }, () => 0);
    const { order, tickets, admit } = recorder(scheduler);
    const admitted = scheduler.admitNow("one", [small, small, { memoryBytes: GIB, vcpus: 0 }]);
    expect(scheduler.used).toEqual({ memoryBytes: 3 * GIB, vcpus: 2 });
    expect(scheduler.admitNow("two", [small, small])).toBeNull();
    expect(scheduler.used).toEqual({ memoryBytes: 3 * GIB, vcpus: 2 });
    void admit("large", "one", { memoryBytes: 2 * GIB, vcpus: 1 });
    expect(scheduler.admitNow("one", [small])).toBeNull();
    admitted?.[0]?.[Symbol.dispose]();
    await settle();
    expect(order).toEqual(["large"]);
    expect(scheduler.admitNow("two", [small])).toBeNull();
    for (const ticket of [...(admitted ?? []), ...tickets.values()]) ticket[Symbol.dispose]();
    expect(scheduler.used).toEqual({ memoryBytes: 0, vcpus: 0 });
    expect(scheduler.admitNow("two", [small])).toHaveLength(1);
  });

  test("counts an eighth of the vCPUs of a sandbox that runs, and all of its memory, without an error of rounding", async () => {
    const shape = { vcpus: 1, memoryBytes: GIB };
    const cost = costOf(shape);
    const idle = sandboxCostOf(shape);
    expect(idle).toEqual({ ...cost, vcpus: 0.125 });
    const scheduler = new Scheduler({ memoryBytes: 100 * cost.memoryBytes, vcpus: 4 }, () => 0);
    const { order, tickets, admit } = recorder(scheduler);
    for (let index = 0; index < 26; index++) void admit(`box-${index}`, "one", cost);
    await settle();
    expect(order).toHaveLength(4);
    for (let index = 0; index < 25; index++) {
      tickets.get(`box-${index}`)?.reduce(idle);
      await settle();
    }
    // The last one has no room for its start.
    expect([order.length, scheduler.used, scheduler.heldBy("one").vcpus]).toEqual([
      25,
      { memoryBytes: 25 * cost.memoryBytes, vcpus: 25 / 8 },
      25 / 8,
    ]);
    for (let index = 0; index < 26; index++) {
      tickets.get(`box-${index}`)?.[Symbol.dispose]();
      tickets.get(`box-${index}`)?.reduce(idle);
      await settle();
    }
    expect([scheduler.used.vcpus, scheduler.heldBy("one").vcpus, scheduler.runningCount]).toEqual([0, 0, 0]);
  });

  test("another account's single run waits for at most one completion", async () => {
    const scheduler = new Scheduler({ memoryBytes: GIB, vcpus: 1 }, () => 0);
    const { order, tickets, admit } = recorder(scheduler);
    for (let index = 0; index < 500; index++) void admit(`busy-${index}`, "busy");
    void admit("single", "other");
    await settle();
    expect(order).toEqual(["busy-0"]);
    tickets.get("busy-0")?.[Symbol.dispose]();
    await settle();
    expect(order).toEqual(["busy-0", "single"]);
  });

  test("accounts with less running work go first", async () => {
    const scheduler = new Scheduler({ memoryBytes: 2 * GIB, vcpus: 2 }, () => 0);
    const { order, tickets, admit } = recorder(scheduler);
    for (let index = 0; index < 4; index++) void admit(`busy-${index}`, "busy");
    void admit("single", "other");
    await settle();
    tickets.get("busy-0")?.[Symbol.dispose]();
    await settle();
    expect(order).toEqual(["busy-0", "busy-1", "single"]);
  });

  test("cancelled work leaves the queue at once", async () => {
    const scheduler = new Scheduler({ memoryBytes: GIB, vcpus: 1 }, () => 0);
    const { order, tickets, admit } = recorder(scheduler);
    const abort = new AbortController();
    void admit("a", "one");
    const waiting = admit("b", "one", small, abort.signal);
    abort.abort(new Error("cancelled"));
    expect(await throwing(waiting)).toThrow("cancelled");
    expect(scheduler.waitingCount("one")).toBe(0);
    tickets.get("a")?.[Symbol.dispose]();
    await settle();
    expect(order).toEqual(["a"]);
  });

  test("large work at the head gets a reservation after 30 s", async () => {
    let nowMs = 0;
    const scheduler = new Scheduler({ memoryBytes: 2 * GIB, vcpus: 8 }, () => nowMs);
    const { order, tickets, admit } = recorder(scheduler);
    void admit("s0", "small");
    await settle();
    void admit("large", "big", { memoryBytes: 2 * GIB, vcpus: 1 });
    void admit("s1", "small");
    await settle();
    expect(order).toEqual(["s0", "s1"]);
    nowMs = 30_000;
    void admit("s2", "small");
    tickets.get("s0")?.[Symbol.dispose]();
    await settle();
    expect(order).toEqual(["s0", "s1"]);
    tickets.get("s1")?.[Symbol.dispose]();
    await settle();
    expect(order).toEqual(["s0", "s1", "large"]);
  });
});

test("a reservation of one account delays another's single run by no more than one completion", async () => {
  let nowMs = 0;
  const scheduler = new Scheduler({ memoryBytes: 4 * GIB, vcpus: 8 }, () => nowMs);
  const { order, tickets, admit } = recorder(scheduler);
  const end = async (name: string) => {
    tickets.get(name)?.[Symbol.dispose]();
    await settle();
  };
  for (let index = 0; index < 4; index++) void admit(`busy-${index}`, "busy");
  void admit("large", "busy", { memoryBytes: 4 * GIB, vcpus: 1 });
  for (let index = 4; index < 500; index++) void admit(`busy-${index}`, "busy");
  await settle();
  nowMs = 30_000;
  void admit("single", "other");
  await end("busy-0");
  expect(order).toEqual(["busy-0", "busy-1", "busy-2", "busy-3", "single"]);
  // One of each account: a stream of them does not block the large work.
  void admit("second", "other");
  void admit("third", "third");
  await end("single");
  expect(order.slice(5)).toEqual(["third"]);
  for (const name of ["busy-1", "busy-2", "busy-3", "third"]) await end(name);
  expect(order.slice(6)).toEqual(["large"]);
});

describe("idle work", () => {
  const budget = { memoryBytes: 2 * GIB, vcpus: 2 };

  test("is admitted when there is room and no other work waits, and does not count for an account", async () => {
    const scheduler = new Scheduler(budget, () => 0);
    const { order, tickets, admit } = recorder(scheduler);
    using idle = await scheduler.admitIdle(small, never);
    expect(scheduler.runningCount).toBe(0);
    void admit("a", "one");
    await settle();
    expect(idle.yield.aborted).toBe(false);
    void admit("b", "one");
    await settle();
    expect(order).toEqual(["a", "b"]);
    expect(idle.yield.aborted).toBe(true);
    tickets.get("a")?.[Symbol.dispose]();
  });

  test("waits for room, and returns it", async () => {
    const scheduler = new Scheduler(budget, () => 0);
    const { order, tickets, admit } = recorder(scheduler);
    for (const name of ["a", "b", "c"]) void admit(name, "one");
    await settle();
    const admitted: string[] = [];
    const idle = scheduler.admitIdle(small, never).then((ticket) => {
      admitted.push("idle");
      return ticket;
    });
    tickets.get("a")?.[Symbol.dispose]();
    await settle();
    expect(order).toEqual(["a", "b", "c"]);
    expect(admitted).toEqual([]);
    tickets.get("b")?.[Symbol.dispose]();
    const first = await idle;
    const second = scheduler.admitIdle(small, never);
    tickets.get("c")?.[Symbol.dispose]();
    using _second = await second;
    const third = scheduler.admitIdle(small, never);
    first[Symbol.dispose]();
    using _third = await third;
  });

  test("leaves the queue when its signal fires", async () => {
    const scheduler = new Scheduler({ memoryBytes: GIB, vcpus: 1 }, () => 0);
    using _running = await scheduler.admit("one", small, never);
    const stop = new AbortController();
    const idle = scheduler.admitIdle(small, stop.signal);
    stop.abort(new Error("stopped"));
    expect(await throwing(idle)).toThrow("stopped");
  });
});
