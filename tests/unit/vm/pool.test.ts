import { describe, expect, test } from "bun:test";
import { silentLog } from "../../../src/log.ts";
import { CpuWeight } from "../../../src/vm/cpu-weight.ts";
import { Pool, type PoolOptions } from "../../../src/vm/pool.ts";
import { TemplateStore, templateShape } from "../../../src/vm/templates.ts";
import type { Machine } from "../../../src/vm/vmm.ts";
import { type FakeMachine, type FakeTemplate, FakeVmm } from "../../support/fake-vmm.ts";

const MIB = 1_048_576;
const SHAPE = { vcpus: 1, memoryBytes: 256 * MIB };
const DAY_MS = 86_400_000;
const never = new AbortController().signal;

async function until(condition: () => boolean): Promise<void> {
  for (let round = 0; !condition(); round++) {
    if (round > 1000) throw new Error("it did not come to that in time");
    await Bun.sleep(2);
  }
}

test("shapes are rounded up to those of templates", () => {
  expect(templateShape({ vcpus: 3, memoryBytes: 1 })).toEqual({ vcpus: 3, memoryBytes: 128 * MIB });
  expect(templateShape({ vcpus: 1, memoryBytes: 256 * MIB })).toEqual(SHAPE);
  expect(templateShape({ vcpus: 1, memoryBytes: 256 * MIB + 1 }).memoryBytes).toBe(512 * MIB);
});

describe("templates", () => {
  function open(vmm: FakeVmm): TemplateStore {
    return new TemplateStore({ vmm, log: silentLog, clock: () => vmm.now });
  }

  test("are built once, however many ask at a time", async () => {
    const vmm = new FakeVmm();
    await using store = open(vmm);
    const got = await Promise.all([store.get(SHAPE), store.get(SHAPE), store.get(SHAPE)]);
    expect(new Set(got).size).toBe(1);
    expect(vmm.calls).toEqual(["bootForTemplate", "save"]);
    expect(vmm.live.size).toBe(0);
  });

  test("are tried again after a failure", async () => {
    const vmm = new FakeVmm();
    vmm.failing.add("bootForTemplate");
    await using store = open(vmm);
    await expect(store.get(SHAPE)).rejects.toThrow("bootForTemplate fails");
    vmm.failing.clear();
    expect((await store.get(SHAPE)).shape).toEqual(SHAPE);
  });

  test("that fail are built again at once, and then after a pause, in which nobody waits", async () => {
    const vmm = new FakeVmm();
    vmm.killedAt.push("hello", "sync");
    await using store = open(vmm);
    const boots = () => vmm.calls.filter((call) => call === "bootForTemplate").length;
    await expect(store.get(SHAPE)).rejects.toThrow("killed by signal 9");
    await expect(store.get(SHAPE)).rejects.toThrow("killed by signal 9");
    await expect(store.get(SHAPE)).rejects.toThrow("killed by signal 9");
    expect(boots()).toBe(2);
    expect((await store.get({ vcpus: 2, memoryBytes: 256 * MIB })).shape.vcpus).toBe(2);
    let built = false;
    for (let round = 0; round < 100 && !built; round++) {
      await Bun.sleep(20);
      built = (await store.get(SHAPE).catch(() => null)) !== null;
    }
    expect(boots()).toBe(4);
    expect([...vmm.live]).toEqual([]);
  });

  test("are renewed after a day, while the old one serves", async () => {
    const vmm = new FakeVmm();
    await using store = open(vmm);
    const old = (await store.get(SHAPE)) as FakeTemplate;
    vmm.now = DAY_MS + 1;
    vmm.failing.add("bootForTemplate");
    expect(await store.get(SHAPE)).toBe(old);
    await until(() => vmm.calls.length === 3);
    await Bun.sleep(5);
    expect(old.disposed).toBe(false);
    vmm.failing.clear();
    vmm.now += 60_000;
    expect(await store.get(SHAPE)).toBe(old);
    await until(() => old.disposed);
    expect(await store.get(SHAPE)).not.toBe(old);
    expect(vmm.templates.length).toBe(2);
  });

  test("are renewed when the host has another VMM, while the old one serves", async () => {
    const vmm = new FakeVmm();
    await using store = open(vmm);
    const old = (await store.get(SHAPE)) as FakeTemplate;
    expect(await store.get(SHAPE)).toBe(old);
    expect(vmm.templates.length).toBe(1);
    vmm.isOutdated = true;
    expect(await store.get(SHAPE)).toBe(old);
    await until(() => old.disposed);
    expect(await store.get(SHAPE)).toBe(vmm.templates[1] as FakeTemplate);
    await store.get(SHAPE);
    expect(vmm.templates.length).toBe(2);
  });

  test("that cannot be renewed serve on, and are tried again after a minute that doubles to an hour", async () => {
    const vmm = new FakeVmm();
    const warnings: unknown[] = [];
    const log = { ...silentLog, warn: (_: string, fields?: Record<string, unknown>) => void warnings.push(fields) };
    await using store = new TemplateStore({ vmm, log, clock: () => vmm.now });
    const old = await store.get(SHAPE);
    vmm.isOutdated = true;
    vmm.failing.add("bootForTemplate");
    const boots = () => vmm.calls.filter((call) => call === "bootForTemplate").length;
    for (const [failed, minutes] of [1, 2, 4, 8, 16, 32, 60, 60].entries()) {
      expect(await store.get(SHAPE)).toBe(old);
      await until(() => warnings.length === failed + 1);
      expect(warnings.at(-1)).toMatchObject({ retry_ms: minutes * 60_000 });
      vmm.now += minutes * 60_000 - 1;
      expect(await store.get(SHAPE)).toBe(old);
      expect(boots()).toBe(failed + 2);
      vmm.now += 1;
    }
    vmm.failing.clear();
    expect(await store.get(SHAPE)).toBe(old);
    await until(() => (old as FakeTemplate).disposed);
    expect(await store.get(SHAPE)).not.toBe(old);
  });

  test("beyond a few, the one unused for longest goes", async () => {
    const vmm = new FakeVmm();
    await using store = open(vmm);
    const shape = (vcpus: number) => ({ vcpus, memoryBytes: 128 * MIB });
    for (let vcpus = 1; vcpus <= 8; vcpus++) await store.get(shape(vcpus));
    await store.get(shape(1));
    await store.get(shape(9));
    await until(() => vmm.templates.some(({ disposed }) => disposed));
    expect(vmm.templates.filter(({ disposed }) => disposed).map((template) => template.shape.vcpus)).toEqual([2]);
  });

  test("are all gone after disposal, also one that is being built, and the first that was given", async () => {
    const vmm = new FakeVmm();
    const first = (await vmm.save(await vmm.bootForTemplate(SHAPE))) as FakeTemplate;
    const store = new TemplateStore({ vmm, log: silentLog, first });
    expect(await store.get(SHAPE)).toBe(first);
    const building = store.get({ vcpus: 2, memoryBytes: 128 * MIB });
    await Promise.allSettled([store[Symbol.asyncDispose](), building]);
    expect(vmm.templates.map(({ disposed }) => disposed)).not.toContain(false);
    expect(vmm.live.size).toBe(0);
    await expect(store.get(SHAPE)).rejects.toThrow("no longer needed");
  });
});

describe("pool", () => {
  function open(vmm: FakeVmm, change: Partial<PoolOptions> = {}) {
    const templates = new TemplateStore({ vmm, log: silentLog, clock: () => vmm.now });
    return new Pool({ vmm, templates, shape: SHAPE, size: 2, log: silentLog, ...change });
  }

  test("takes the clone that waits, and refills", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    const waiting = [...vmm.live];
    await using taken = await pool.take({ vcpus: 1, memoryBytes: 200 * MIB }, never);
    expect(taken.machine).toBe(waiting[0] as typeof taken.machine);
    await until(() => pool.waitingCount === 2);
    expect(vmm.calls).toEqual(["bootForTemplate", "save", "clone", "clone", "clone"]);
  });

  test("gives clones that wait little of the processors, and those that are taken what is theirs", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    const [first, second] = vmm.live;
    const { waiting, inUse } = CpuWeight;
    const weights = (machine: Machine | undefined) => [...new Set(vmm.weights.get(machine as Machine))];
    expect([first, second].map(weights)).toEqual([[waiting], [waiting]]);
    await using taken = await pool.take(SHAPE, never);
    expect(weights(taken.machine)).toEqual([waiting, inUse]);
    await using fresh = await pool.takeAside(SHAPE, never);
    expect(weights(fresh.machine)).toEqual([inUse]);
  });

  test("never hands out a clone that lives, but whose guest is gone", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    const [lost, good] = vmm.live;
    (lost as unknown as FakeMachine).loseAgent();
    await using taken = await pool.take(SHAPE, never);
    expect(taken.machine).toBe(good as typeof taken.machine);
    expect(vmm.live.has(lost as Machine)).toBe(false);
  });

  test("leaves those that wait to others, when told so", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    const waiting = [...vmm.live];
    await using taken = await pool.takeAside(SHAPE, never);
    expect(waiting).not.toContain(taken.machine as (typeof waiting)[0]);
    expect(pool.waitingCount).toBe(2);
  });

  test("makes a fresh clone of another shape", async () => {
    const vmm = new FakeVmm("kvm");
    await using pool = open(vmm);
    pool.start();
    await pool.idle();
    await using taken = await pool.take({ vcpus: 2, memoryBytes: 200 * MIB }, never);
    expect(taken.machine.shape).toEqual({ vcpus: 2, memoryBytes: 256 * MIB });
    expect(taken.isolation).toBe("vm");
    expect(pool.waitingCount).toBe(2);
  });

  test("prefers a clone that has rehearsed, and lends none that is at it", async () => {
    const vmm = new FakeVmm();
    const begun: Machine[] = [];
    const hold = Promise.withResolvers<void>();
    await using pool = open(vmm, {
      rehearse: async ({ machine }) => {
        if (begun.push(machine) === 2) await hold.promise;
      },
    });
    pool.start();
    await until(() => begun.length === 2);
    expect(pool.waitingCount).toBe(1);
    await using first = await pool.take(SHAPE, never);
    expect(first.machine).toBe(begun[0] as Machine);
    await using second = await pool.take(SHAPE, never);
    expect(begun).not.toContain(second.machine);
    hold.resolve();
    await until(() => pool.waitingCount === 2);
    await using third = await pool.take(SHAPE, never);
    expect(third.machine).toBe(begun[1] as Machine);
  });

  test("ends a clone that could not rehearse", async () => {
    const vmm = new FakeVmm();
    await using pool = open(vmm, { rehearse: () => Promise.reject(new Error("forgot the text")) });
    pool.start();
    await until(() => vmm.calls.filter((call) => call === "clone").length === 2);
    await until(() => vmm.live.size === 1);
    expect(pool.waitingCount).toBe(1);
  });

  test("gives half of its clones up while memory is short", async () => {
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

  test("looks at the memory now and then, and gives up and makes clones by it", async () => {
    const vmm = new FakeVmm();
    let short = false;
    await using pool = open(vmm, { size: 4, isShortOfMemory: () => short, memoryIntervalMs: 5 });
    pool.start();
    await until(() => pool.waitingCount === 4);
    short = true;
    await until(() => pool.waitingCount === 2 && vmm.live.size === 2);
    short = false;
    await until(() => pool.waitingCount === 4);
  });

  test.each(["start", "hello", "sync", "save"] as const)("is filled at once after a kill during %s", async (phase) => {
    const vmm = new FakeVmm();
    vmm.killedAt.push(phase);
    await using pool = open(vmm);
    pool.start();
    await until(() => pool.waitingCount === 2);
    expect(vmm.killedAt).toEqual([]);
    expect(vmm.live.size).toBe(2);
  });

  test("gives no machine to wait that ended while it rehearsed", async () => {
    const vmm = new FakeVmm();
    let rehearsals = 0;
    await using pool = open(vmm, {
      rehearse: async ({ machine }) => {
        if (++rehearsals > 1) return;
        (machine as unknown as FakeMachine).die();
        await machine.exited;
        await Bun.sleep(1);
      },
    });
    pool.start();
    await until(() => pool.readyCount === 2);
    expect(rehearsals).toBe(3);
    expect(vmm.live.size).toBe(2);
  });

  test("makes clones that do not live less and less often, until one is taken", async () => {
    const vmm = new FakeVmm();
    const pauses: unknown[] = [];
    const warn = (_: string, fields?: Record<string, unknown>) => void pauses.push(fields?.["retry_ms"]);
    await using pool = open(vmm, { size: 1, log: { ...silentLog, warn } });
    pool.start();
    for (const expected of [[0], [0, 1000]]) {
      await until(() => pool.waitingCount === 1);
      for (const machine of vmm.live) (machine as unknown as FakeMachine).die();
      await until(() => pauses.length === expected.length);
      expect(pauses).toEqual(expected);
    }
    await using _taken = await pool.take(SHAPE, never);
    await until(() => pool.waitingCount === 1);
    await using _waiting = await pool.take(SHAPE, never);
    await until(() => pool.waitingCount === 1);
    for (const machine of vmm.live) (machine as unknown as FakeMachine).die();
    await until(() => pauses.length === 3);
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
    await until(() => vmm.live.size === 1);
    await until(() => pool.waitingCount === 2);
    expect(vmm.live.size).toBe(2);
  });

  test("boots from cold when there is no clone to be had, and fails with the last reason", async () => {
    const vmm = new FakeVmm();
    vmm.failing.add("clone");
    await using pool = open(vmm);
    {
      await using taken = await pool.take(SHAPE, never);
      expect(vmm.calls.at(-1)).toBe("boot");
      expect(taken.machine.shape).toEqual(SHAPE);
    }
    vmm.failing.add("boot");
    await expect(pool.take(SHAPE, never)).rejects.toThrow("boot fails");
    expect(vmm.live.size).toBe(0);
  });

  test("who gives up gets the reason, and the machine goes", async () => {
    const vmm = new FakeVmm();
    vmm.script = { mute: true };
    await using pool = open(vmm, { coldBootOnly: true });
    const reason = new Error("enough");
    const given = new AbortController();
    setTimeout(() => given.abort(reason), 20);
    await expect(pool.take(SHAPE, given.signal)).rejects.toBe(reason);
    expect(vmm.live.size).toBe(0);
    await expect(pool.take(SHAPE, given.signal)).rejects.toBe(reason);
  });

  test("a machine that gets nowhere is given up with what is known about it", async () => {
    const vmm = new FakeVmm();
    vmm.script = { mute: true, stuck: "it only pretends" };
    await using pool = open(vmm, { coldBootOnly: true });
    await expect(pool.take(SHAPE, never)).rejects.toThrow("it only pretends");
    expect(vmm.live.size).toBe(0);
  });

  test("is empty after disposal, and gives nothing any more", async () => {
    const vmm = new FakeVmm();
    const pool = open(vmm);
    pool.start();
    await Bun.sleep(8);
    await pool[Symbol.asyncDispose]();
    expect(pool.waitingCount).toBe(0);
    expect([...vmm.live].filter((machine) => machine.shape === SHAPE)).toEqual([]);
    await expect(pool.take(SHAPE, never)).rejects.toThrow("closed");
  });
});
