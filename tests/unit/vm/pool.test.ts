import { describe, expect, test } from "bun:test";
import { silentLog } from "../../../src/log.ts";
import { CpuWeight } from "../../../src/vm/cpu-weight.ts";
import { Pool, type PoolOptions } from "../../../src/vm/pool.ts";
import { TemplateStore } from "../../../src/vm/templates.ts";
import type { Machine } from "../../../src/vm/vmm.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { type FakeMachine, FakeVmm } from "../../support/guests/fake-vmm.ts";
import { turns, until } from "../../support/waiting.ts";

const MIB = 1_048_576;
const SHAPE = { vcpus: 1, memoryBytes: 256 * MIB };
const never = new AbortController().signal;

describe("pool", () => {
  function open(vmm: FakeVmm, change: Partial<PoolOptions> = {}) {
    const templates = new TemplateStore({ vmm, log: silentLog, clock: () => vmm.now });
    return new Pool({ vmm, templates, shape: SHAPE, size: 2, log: silentLog, ...change });
  }

  test("returns the waiting clone, and makes another", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    const waiting = [...vmm.live];
    await using lease = await pool.take({ vcpus: 1, memoryBytes: 200 * MIB }, never);
    expect(lease.machine).toBe(waiting[0] as typeof lease.machine);
    await until("two machines wait", () => pool.waitingCount === 2);
    expect(vmm.calls).toEqual(["bootForTemplate", "save", "clone", "clone", "clone"]);
  });

  test("gives a small share of the processors to waiting clones, and the full share to clones in use", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    const [first, second] = vmm.live;
    const { waiting, inUse } = CpuWeight;
    const weights = (machine: Machine | undefined) => [...new Set(vmm.weights.get(machine as Machine))];
    expect([first, second].map(weights)).toEqual([[waiting], [waiting]]);
    await using lease = await pool.take(SHAPE, never);
    expect(weights(lease.machine)).toEqual([waiting, inUse]);
    await using fresh = await pool.takeUnpooled(SHAPE, never);
    expect(weights(fresh.machine)).toEqual([inUse]);
  });

  test("never returns a clone whose guest does not answer", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    const [lost, good] = vmm.live;
    (lost as unknown as FakeMachine).loseAgent();
    await using lease = await pool.take(SHAPE, never);
    expect(lease.machine).toBe(good as typeof lease.machine);
    expect(vmm.live.has(lost as Machine)).toBe(false);
  });

  test("leaves waiting clones to other callers on request", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    const waiting = [...vmm.live];
    await using lease = await pool.takeUnpooled(SHAPE, never);
    expect(waiting).not.toContain(lease.machine as (typeof waiting)[0]);
    expect(pool.waitingCount).toBe(2);
  });

  test("makes a new clone for another shape", async () => {
    const vmm = new FakeVmm("kvm");
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    await using lease = await pool.take({ vcpus: 2, memoryBytes: 200 * MIB }, never);
    expect(lease.machine.shape).toEqual({ vcpus: 2, memoryBytes: 256 * MIB });
    expect(lease.isolation).toBe("vm");
    expect(pool.waitingCount).toBe(2);
  });

  test("prefers a clone that has rehearsed, and returns none during its rehearsal", async () => {
    const vmm = new FakeVmm();
    const begun: Machine[] = [];
    const hold = Promise.withResolvers<void>();
    await using pool = open(vmm, {
      rehearse: async ({ machine }) => {
        if (begun.push(machine) === 2) await hold.promise;
      },
    });
    pool.start();
    await until("both have begun", () => begun.length === 2);
    expect(pool.waitingCount).toBe(1);
    await using first = await pool.take(SHAPE, never);
    expect(first.machine).toBe(begun[0] as Machine);
    await using second = await pool.take(SHAPE, never);
    expect(begun).not.toContain(second.machine);
    hold.resolve();
    await until("two machines wait", () => pool.waitingCount === 2);
    await using third = await pool.take(SHAPE, never);
    expect(third.machine).toBe(begun[1] as Machine);
  });

  test("ends a clone whose rehearsal failed", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm, { rehearse: () => Promise.reject(new Error("forgot the text")) });
    pool.start();
    const begun = () => vmm.calls.filter((call) => call === "clone").length;
    // Another clone follows the first failure at once, and later failures after a pause.
    await until("a clone is replaced", () => begun() > 2 && vmm.live.size === 1);
    expect(pool.waitingCount).toBe(1);
  });

  test("ends half of its clones while memory is short", async () => {
    const vmm = new FakeVmm();
    let short = true;
    await using pool = open(vmm, { size: 4, isShortOfMemory: () => short });
    pool.start();
    await pool.idle();
    expect(pool.waitingCount).toBe(2);
    short = false;
    pool.start();
    await pool.idle();
    expect(pool.waitingCount).toBe(4);
  });

  test("checks the memory regularly, and ends or makes clones accordingly", async () => {
    const vmm = new FakeVmm();
    let short = false;
    await using pool = open(vmm, { size: 4, isShortOfMemory: () => short, memoryIntervalMs: 5 });
    pool.start();
    await until("four machines wait", () => pool.waitingCount === 4);
    short = true;
    await until("two are gone", () => pool.waitingCount === 2 && vmm.live.size === 2);
    short = false;
    await until("four machines wait", () => pool.waitingCount === 4);
  });

  test.each(["start", "hello", "sync", "save"] as const)("is filled at once after a kill during %s", async (phase) => {
    const vmm = new FakeVmm();
    vmm.killedAt.push(phase);
    await using pool = open(vmm);
    pool.start();
    await until("two machines wait", () => pool.waitingCount === 2);
    expect(vmm.killedAt).toEqual([]);
    expect(vmm.live.size).toBe(2);
  });

  test("drops a clone that ended during its rehearsal", async () => {
    const vmm = new FakeVmm();
    let rehearsals = 0;
    await using pool = open(vmm, {
      rehearse: async ({ machine }) => {
        if (++rehearsals > 1) return;
        (machine as unknown as FakeMachine).die();
        await machine.exited;
        await turns();
      },
    });
    pool.start();
    await until("two machines are ready", () => pool.readyCount === 2);
    expect(rehearsals).toBe(3);
    expect(vmm.live.size).toBe(2);
  });

  test("makes clones less and less often when they die, until one is used", async () => {
    const vmm = new FakeVmm();
    const pauses: unknown[] = [];
    const warn = (_: string, fields?: Record<string, unknown>) => void pauses.push(fields?.["retry_ms"]);
    await using pool = open(vmm, { size: 1, log: { ...silentLog, warn } });
    pool.start();
    for (const expected of [[0], [0, 1000]]) {
      await until("one machine waits", () => pool.waitingCount === 1);
      for (const machine of vmm.live) (machine as unknown as FakeMachine).die();
      await until("it pauses again", () => pauses.length === expected.length);
      expect(pauses).toEqual(expected);
    }
    await using _taken = await pool.take(SHAPE, never);
    await until("one machine waits", () => pool.waitingCount === 1);
    await using _waiting = await pool.take(SHAPE, never);
    await until("one machine waits", () => pool.waitingCount === 1);
    for (const machine of vmm.live) (machine as unknown as FakeMachine).die();
    await until("it pauses again", () => pauses.length === 3);
    expect(pauses.at(-1)).toBe(0);
  });

  test("drops a clone that died, and replaces it", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    const [first] = vmm.live;
    (first as unknown as FakeMachine).die();
    await first?.exited;
    await until("one machine lives", () => vmm.live.size === 1);
    await until("two machines wait", () => pool.waitingCount === 2);
    expect(vmm.live.size).toBe(2);
  });

  test("boots from cold while a template of another shape is being built", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm, { size: 0 });
    const [first, second] = await Promise.all([pool.take(SHAPE, never), pool.take({ ...SHAPE, vcpus: 2 }, never)]);
    await using _first = first;
    await using _second = second;
    expect([first, second].map(({ machine }) => machine.shape.vcpus)).toEqual([1, 2]);
    expect(vmm.calls.filter((call) => call === "bootForTemplate").length).toBe(1);
    expect(vmm.calls).toContain("boot");
  });

  test("boots from cold when no clone can be made, and fails with the last reason", async () => {
    const vmm = new FakeVmm();
    vmm.failing.add("clone");
    await using pool = open(vmm);
    {
      await using lease = await pool.take(SHAPE, never);
      expect(vmm.calls.at(-1)).toBe("boot");
      expect(lease.machine.shape).toEqual(SHAPE);
    }
    vmm.failing.add("boot");
    expect(await throwing(pool.take(SHAPE, never))).toThrow("boot fails");
    expect(vmm.live.size).toBe(0);
  });

  test("a caller that aborts gets the reason of its signal, and the machine ends", async () => {
    const vmm = new FakeVmm();
    vmm.script = { mute: true };
    await using pool = open(vmm, { coldBootOnly: true });
    const reason = new Error("enough");
    const caller = new AbortController();
    const lease = pool.take(SHAPE, caller.signal);
    await until("a machine is booted", () => vmm.live.size === 1);
    caller.abort(reason);
    expect(await failureOf(lease)).toBe(reason);
    expect(vmm.live.size).toBe(0);
    expect(await failureOf(pool.take(SHAPE, caller.signal))).toBe(reason);
  });

  test("a machine that makes no progress is ended, and the error contains its state", async () => {
    const vmm = new FakeVmm();
    vmm.script = { mute: true, stuck: "it only pretends" };
    await using pool = open(vmm, { coldBootOnly: true });
    expect(await throwing(pool.take(SHAPE, never))).toThrow("it only pretends");
    expect(vmm.live.size).toBe(0);
  });

  test("is empty after disposal, and returns no more machines", async () => {
    const vmm = new FakeVmm();
    const pool = open(vmm);
    pool.start();
    await until("it has begun", () => vmm.calls.length > 0);
    await pool[Symbol.asyncDispose]();
    expect(pool.waitingCount).toBe(0);
    expect([...vmm.live].filter((machine) => machine.shape === SHAPE)).toEqual([]);
    expect(await throwing(pool.take(SHAPE, never))).toThrow("closed");
  });
});
