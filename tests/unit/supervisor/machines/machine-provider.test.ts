import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../../src/domain/errors.ts";
import { silentLog } from "../../../../src/log.ts";
import {
  type MachinePlatform,
  MachineProvider,
  type MachineProviderOptions,
} from "../../../../src/supervisor/machines/machine-provider.ts";
import { Pool } from "../../../../src/vm/pool.ts";
import { TemplateStore } from "../../../../src/vm/templates.ts";
import { failureOf, throwing } from "../../../support/failures.ts";
import { FakeVmm } from "../../../support/guests/fake-vmm.ts";
import { pause, until } from "../../../support/waiting.ts";

const SHAPE = { vcpus: 1, memoryBytes: 256 * 1_048_576 };
const LONG_MS = 3_600_000;
const never = new AbortController().signal;
const REFUSAL = new ApiError("unavailable", "no virtual machine can run on this host");

function providerOf(open: MachineProviderOptions["open"], giveUpMs: number): MachineProvider {
  return new MachineProvider({ open, shape: SHAPE, giveUpMs, log: silentLog });
}

function platform(onDispose: () => void = () => undefined): MachinePlatform {
  const pool = { hasTemplate: true, waitingCount: 1, readyCount: 1 };
  const forks = { name: "qemu" } as const;
  const fields = { pool: pool as never, forks, isolation: "vm", launcher: "/launch" } as const;
  return { ...fields, [Symbol.asyncDispose]: async () => onDispose() };
}

/** Machines of a scripted VMM, with an empty pool. */
function fakeProvider(vmm: FakeVmm, giveUpMs = LONG_MS, greeting: { helloTimeoutMs?: number } = {}): MachineProvider {
  const templates = new TemplateStore({ vmm, log: silentLog, ...greeting });
  const pool = new Pool({ vmm, templates, shape: SHAPE, size: 0, log: silentLog, ...greeting });
  return providerOf(async () => ({ ...platform(), pool }), giveUpMs);
}

/** Fails so often, then opens a platform. */
function openAfter(failures: number): MachineProviderOptions["open"] & { attempts: number } {
  const open = async (): Promise<MachinePlatform> => {
    open.attempts += 1;
    if (open.attempts <= failures) throw REFUSAL;
    return platform();
  };
  open.attempts = 0;
  return open;
}

describe("a host on which no machine can run", () => {
  test("is tried again at once, and waiting callers do not see the failure", async () => {
    const open = openAfter(1);
    await using machines = providerOf(open, LONG_MS);
    expect(machines.state().acceleration).toBe("looking for a way to run virtual machines");
    await machines.ready(never);
    expect(open.attempts).toBe(2);
    expect(machines.state()).toEqual({ isolation: "vm", acceleration: "", template: "" });
  });

  test("is tried again after a pause; meanwhile callers wait, and the state has the reason", async () => {
    const open = openAfter(2);
    await using machines = providerOf(open, LONG_MS);
    const ready = machines.ready(never);
    await until("it failed", () => machines.state().acceleration === REFUSAL.message);
    await Promise.all([ready, machines.ready(never)]);
    expect(open.attempts).toBe(3);
  });

  test("is given up after a while, and callers get the reason", async () => {
    await using machines = providerOf(openAfter(Number.POSITIVE_INFINITY), 5);
    expect(await throwing(machines.ready(never))).toThrow(REFUSAL.message);
    expect(await throwing(machines.take(SHAPE, never))).toThrow(REFUSAL.message);
    expect(machines.state()).toMatchObject({ isolation: null, acceleration: REFUSAL.message });
  });

  test("is tried once more before it is given up", async () => {
    const open = openAfter(3);
    await using machines = providerOf(open, 1400);
    await machines.ready(never);
    expect(open.attempts).toBe(4);
  });

  test("works again later, although it was given up", async () => {
    const slow = Promise.withResolvers<MachinePlatform>();
    let attempts = 0;
    const open = async (): Promise<MachinePlatform> => {
      if (++attempts === 1) throw REFUSAL;
      return await slow.promise;
    };
    await using machines = providerOf(open, 0);
    await until("it is tried again", () => attempts === 2);
    const ready = machines.ready(never);
    slow.resolve(platform());
    await ready;
    expect(machines.state()).toMatchObject({ isolation: "vm", acceleration: "" });
  });

  test("does not keep a cancelled caller waiting", async () => {
    await using machines = providerOf(openAfter(Number.POSITIVE_INFINITY), LONG_MS);
    const cancel = new AbortController();
    const ready = machines.ready(cancel.signal);
    cancel.abort(new Error("cancelled"));
    expect(await throwing(ready)).toThrow("cancelled");
  });

  test("is not tried again once the service stops", async () => {
    const open = openAfter(Number.POSITIVE_INFINITY);
    const machines = providerOf(open, LONG_MS);
    const ready = machines.ready(never).catch((error: unknown) => error);
    await until("it failed twice", () => open.attempts === 2);
    await machines[Symbol.asyncDispose]();
    expect(await ready).toMatchObject({ code: "unavailable", message: "the service is stopping" });
    expect(open.attempts).toBe(2);
  });

  test("disposes of a platform that is found while the service stops", async () => {
    let disposed = 0;
    const slow = Promise.withResolvers<MachinePlatform>();
    const machines = providerOf(() => slow.promise, LONG_MS);
    const stopped = machines[Symbol.asyncDispose]();
    slow.resolve(platform(() => disposed++));
    await stopped;
    expect(disposed).toBe(1);
  });
});

describe("a machine that is not available", () => {
  test("is requested again at once", async () => {
    const vmm = new FakeVmm();
    await using machines = fakeProvider(vmm);
    // One boot for the template, and a cold boot in place of its clone.
    vmm.killedAt.push("start", "start");
    await using taken = await machines.take(SHAPE, never);
    expect(vmm.live.has(taken.machine)).toBe(true);
    expect(vmm.killedAt).toEqual([]);
    expect(machines.state().acceleration).toBe("");
  });

  test("keeps all callers waiting until a machine is available again", async () => {
    const vmm = new FakeVmm();
    await using machines = fakeProvider(vmm);
    await machines.ready(never);
    vmm.failing.add("bootForTemplate").add("boot");
    const machine = machines.take(SHAPE, never);
    await until("it is known", () => machines.state().acceleration === "virtual machines cannot be started");
    let isKnown = false;
    const ready = machines.ready(never).then(() => {
      isKnown = true;
    });
    await pause("it would be known by then", 10);
    expect(isKnown).toBe(false);
    vmm.failing.clear();
    await ready;
    await using started = await machine;
    expect([...vmm.live]).toEqual([started.machine]);
  });

  test("is given up after a long time without any, with the last reason", async () => {
    const vmm = new FakeVmm();
    await using machines = fakeProvider(vmm, 5);
    await machines.ready(never);
    vmm.failing.add("bootForTemplate");
    vmm.killedAt.push(...Array.from({ length: 20 }, () => "start" as const));
    const failure = await machines.take(SHAPE, never).catch((error: unknown) => error);
    expect(failure).toMatchObject({
      code: "unavailable",
      message:
        "virtual machines cannot be started: " +
        "the virtual machine monitor ended before the virtual machine ran (QEMU, killed by signal 9)",
    });
  });

  test("does not keep callers waiting who get other machines", async () => {
    const vmm = new FakeVmm();
    await using machines = fakeProvider(vmm);
    await using _first = await machines.take(SHAPE, never);
    const { boot, bootForTemplate } = vmm;
    const refusing = (start: FakeVmm["boot"]) => (shape: typeof SHAPE) =>
      shape.vcpus > 1 ? Promise.reject(new Error("too many")) : start.call(vmm, shape);
    Object.assign(vmm, { boot: refusing(boot), bootForTemplate: refusing(bootForTemplate) });
    const enough = new AbortController();
    const large = machines.take({ ...SHAPE, vcpus: 2 }, enough.signal).catch((error: unknown) => error);
    await until("another was tried", () => vmm.calls.filter((call) => call === "clone").length >= 3);
    await machines.ready(never);
    await using _second = await machines.take(SHAPE, never);
    enough.abort(new Error("cancelled"));
    expect(await large).toMatchObject({ message: "cancelled" });
  });

  const SMALL = { vcpus: 1, memoryBytes: 1 };
  const OF_SMALL = "virtual machines with vcpus 1 and memory_bytes 1 cannot be started: ";
  test.each([
    ["whose machine never greets", { mute: true }, [], "the guest did not greet: its console ends: a console"],
    [
      "whose machine ends before it greets",
      {},
      ["hello" as const],
      "the virtual machine monitor ended before the virtual machine ran (QEMU, exit code 1)",
    ],
  ])("is refused after a few attempts for a shape %s, while others run", async (_, script, killedAt, reason) => {
    const vmm = new FakeVmm();
    vmm.exitCode = 1;
    await using machines = fakeProvider(vmm, LONG_MS, { helloTimeoutMs: 1 });
    await using _first = await machines.take(SHAPE, never);
    const { boot, bootForTemplate } = vmm;
    let bootsCount = 0;
    const scripted = (start: FakeVmm["boot"]) => (shape: typeof SHAPE) => {
      const isSmall = shape.memoryBytes < SHAPE.memoryBytes;
      if (isSmall) bootsCount += 1;
      vmm.script = isSmall ? script : {};
      vmm.killedAt.splice(0, 1, ...(isSmall ? killedAt : []));
      return start.call(vmm, shape);
    };
    Object.assign(vmm, { boot: scripted(boot), bootForTemplate: scripted(bootForTemplate) });
    expect(await failureOf(machines.take(SMALL, never))).toMatchObject({
      code: "unavailable",
      message: OF_SMALL + reason,
    });
    // Each attempt boots a machine for the template, and one from cold; a failed template is not built again at once.
    expect(bootsCount).toBeLessThanOrEqual(6);
    expect(machines.state().acceleration).toBe("");
    await using _second = await machines.take(SHAPE, never);
  });

  test("is requested again when something ended its monitor, whatever its shape", async () => {
    const vmm = new FakeVmm();
    await using machines = fakeProvider(vmm);
    await using _first = await machines.take(SHAPE, never);
    vmm.killedAt.push("start", "start", "start", "start", "start", "start", "start", "start");
    await using taken = await machines.take(SMALL, never);
    expect(vmm.live.has(taken.machine)).toBe(true);
    expect(vmm.killedAt).toEqual([]);
  });

  test("is refused at once when the disk is full", async () => {
    const vmm = new FakeVmm();
    await using machines = fakeProvider(vmm);
    const full = Object.assign(new Error("no space left on device"), { code: "ENOSPC" });
    const refuse = () => Promise.reject(full);
    Object.assign(vmm, { boot: refuse, bootForTemplate: refuse });
    expect(await machines.take(SHAPE, never).catch((error: unknown) => error)).toBe(full);
  });
});
