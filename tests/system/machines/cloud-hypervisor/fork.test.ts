/** Forks of machines of Cloud Hypervisor by snapshots, against a stand-in for the program. */
import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { silentLog } from "../../../../src/log.ts";
import type { CloudHypervisorMachine } from "../../../../src/vm/cloud-hypervisor/machine.ts";
import { continueCopy } from "../../../../src/vm/copy-agent.ts";
import { buildTemplate, syncAgent } from "../../../../src/vm/templates.ts";
import type { Machine } from "../../../../src/vm/vmm.ts";
import {
  blankDisks,
  callsOf,
  SHAPE,
  StandInHost,
  violationsOf,
} from "../../../support/cloud-hypervisor/cloud-hypervisor.ts";
import {
  content,
  copyOf,
  counting,
  disksOf,
  fork,
  newPath,
  nothingIsLeft,
  scratchCopy,
} from "../../../support/cloud-hypervisor/forks.ts";
import { failureOf, throwing } from "../../../support/failures.ts";
import { until } from "../../../support/waiting.ts";

setDefaultTimeout(60_000);

const NEVER = new AbortController().signal;
let host: StandInHost;
beforeAll(async () => {
  host = await StandInHost.open();
});
afterAll(() => host[Symbol.asyncDispose]());
beforeEach(() => host.control({}));

const violations = (machine: Machine) => violationsOf(host.transcript(machine));
const calls = (machine: Machine) => callsOf(host.transcript(machine)).filter((call) => call !== "vmm.ping");
const lastCalls = (machine: Machine, count: number) => calls(machine).slice(-count);

describe("a fork", () => {
  test("pauses the machine for a snapshot and the copy of its scratch, and tells for how long", async () => {
    await using vm = await counting(host);
    await using forked = await fork(host, vm);
    expect(lastCalls(vm.machine, 3)).toEqual(["vm.pause", "vm.snapshot", "vm.resume"]);
    expect(violations(vm.machine)).toEqual([]);
    const { pausedMs, copiedBytes, memoryBytes, shape } = forked.point;
    expect(pausedMs).toBeGreaterThan(0);
    expect([copiedBytes, memoryBytes, shape]).toEqual([SHAPE.memoryBytes, 0, SHAPE]);
    expect(content(forked.scratch)).toBe("scratch");
    expect(statSync(forked.scratch).mode & 0o777).toBe(0o600);
    // The machine continues, and nothing of the fork is in its directory.
    const before = vm.output.text.length;
    await until("it counts on", () => vm.output.text.length > before);
    expect(readdirSync(vm.machine.directory)).not.toContain("fork");
  });

  test("has files that no VMM can change, not even one that keeps them open", async () => {
    host.control({ snapshot: "open" });
    await using vm = await counting(host);
    const machines = readdirSync(host.vmsDirectory);
    await using _forked = await fork(host, vm);
    const [name = ""] = readdirSync(host.vmsDirectory).filter((entry) => !machines.includes(entry));
    const directory = join(host.vmsDirectory, name);
    expect(statSync(directory).mode & 0o777).toBe(0o700);
    for (const file of ["config.json", "state.json", "memory-ranges"]) {
      const { mode, uid, nlink } = statSync(join(directory, file));
      expect([file, mode & 0o777, uid, nlink]).toEqual([file, 0o444, 0, 1]);
    }
    await (vm.machine as CloudHypervisorMachine).api.ping();
    const [first] = readFileSync(join(directory, "memory-ranges")).subarray(0, 1);
    expect(first).toBe(0);
  });

  test.each(["config", "link", "large"] as const)("of a hostile VMM is refused: %s", async (snapshot) => {
    host.control({ snapshot });
    await using vm = await counting(host);
    expect(await failureOf(fork(host, vm))).toMatchObject({ name: "VmmError" });
    expect(readdirSync(host.vmsDirectory)).toEqual([vm.machine.id]);
    expect(readdirSync(vm.machine.directory)).not.toContain("fork");
    expect(lastCalls(vm.machine, 1)).toEqual(["vm.resume"]);
  });

  test("needs room on the disk for all of the memory, and says so before the pause", async () => {
    await using machine = await host.vmm.boot({ vcpus: 1, memoryBytes: 2 ** 50 });
    await machine.attach(blankDisks(host, machine, 1));
    const refused = machine.prepareFork?.({ scratchPath: newPath(host, "scratch"), signal: NEVER });
    expect(await throwing(refused)).toThrow("a fork writes all memory of the machine to the disk, which needs");
    expect(calls(machine)).not.toContain("vm.pause");
  });

  test("that is aborted or given up leaves nothing behind", async () => {
    await using vm = await counting(host);
    expect(
      await throwing(vm.machine.prepareFork?.({ scratchPath: "", signal: AbortSignal.abort(new Error("no")) })),
    ).toThrow("no");
    const prepared = await vm.machine.prepareFork?.({ scratchPath: newPath(host, "scratch"), signal: NEVER });
    await prepared?.[Symbol.asyncDispose]();
    expect(calls(vm.machine)).not.toContain("vm.pause");
  });
});

describe("a fork that fails", () => {
  test.each(["500", "garbage", "close"] as const)("at the snapshot continues the machine: %s", async (how) => {
    host.control({ failures: [{ endpoint: "vm.snapshot", how }] });
    await using vm = await counting(host);
    expect(await throwing(fork(host, vm))).toThrow("vm.snapshot");
    expect(lastCalls(vm.machine, 3)).toEqual(["vm.pause", "vm.snapshot", "vm.resume"]);
    const before = vm.output.text.length;
    await until("it counts on", () => vm.output.text.length > before);
    expect(readdirSync(host.vmsDirectory)).toEqual([vm.machine.id]);
    expect(readdirSync(vm.machine.directory)).not.toContain("fork");
    expect(violations(vm.machine)).toEqual([]);
  });

  test("because the machine does not pause lets it run, and can be repeated", async () => {
    host.control({ failures: [{ endpoint: "vm.pause", how: "500", once: true }] });
    await using vm = await counting(host);
    expect(await throwing(fork(host, vm))).toThrow("vm.pause");
    expect(lastCalls(vm.machine, 1)).toEqual(["vm.pause"]);
    await using _forked = await fork(host, vm);
    expect(violations(vm.machine)).toEqual([]);
  });

  test("because the scratch cannot be copied continues the machine", async () => {
    await using vm = await counting(host);
    const prepared = await vm.machine.prepareFork?.({ scratchPath: newPath(host, "scratch"), signal: NEVER });
    if (prepared === undefined) throw new Error("it cannot fork");
    await using _prepared = prepared;
    await vm.agent.hold();
    await rm(join(vm.machine.directory, "S"));
    expect(await throwing(prepared.take())).toThrow("ENOENT");
    await syncAgent(vm.agent);
    expect(lastCalls(vm.machine, 3)).toEqual(["vm.pause", "vm.snapshot", "vm.resume"]);
    expect(readdirSync(host.vmsDirectory)).toEqual([vm.machine.id]);
  });

  test("because the machine cannot continue ends it with the reason", async () => {
    host.control({ failures: [{ endpoint: "vm.resume", how: "500" }] });
    await using vm = await counting(host);
    const prepared = await vm.machine.prepareFork?.({ scratchPath: newPath(host, "scratch"), signal: NEVER });
    await vm.agent.hold();
    // The copy is whole.
    await using _point = await prepared?.take();
    const { reason, detail } = await vm.machine.exited;
    expect(reason).toBe("vmm_died");
    expect(detail).toStartWith("the machine could not continue after a fork: Cloud Hypervisor refused vm.resume (500)");
  });

  test("because the VMM dies reports its end, and leaves nothing", async () => {
    {
      host.control({ failures: [{ endpoint: "vm.snapshot", how: "exit" }] });
      await using vm = await counting(host);
      expect(await failureOf(fork(host, vm))).toBeInstanceOf(Error);
      expect(await vm.machine.exited).toMatchObject({
        reason: "vmm_died",
        monitor: "Cloud Hypervisor, exit code 1",
      });
    }
    await nothingIsLeft(host);
  });
});

describe("a copy", () => {
  test("is restored with the disks of its machine, and paused until it is continued", async () => {
    {
      await using vm = await counting(host);
      await using forked = await fork(host, vm);
      await using copy = await copyOf(host, forked.point, forked.scratch);
      expect(calls(copy)).toEqual(["vm.restore"]);
      // Zeros are holes, which a copy does not get.
      expect(statSync(join(copy.directory, "snapshot/memory-ranges")).blocks * 512).toBeLessThan(1_048_576);
      expect(existsSync(forked.scratch)).toBe(false);
      expect(content(join(copy.directory, "S"))).toBe("scratch");
      expect(statSync(join(copy.directory, "S")).uid).toBe(copy.uid);
      expect(copy.record?.()).toMatchObject({
        disks: [
          { serial: "L00", node: "disk-L00" },
          { serial: "S", node: "disk-S" },
        ],
        nextLun: 2,
      });
      expect(await (copy as CloudHypervisorMachine).api.info()).toEqual({ state: "Paused" });
      await copy.resume();
      // The next disk gets the slot after those of the machine.
      const path = join(host.directory, "L01");
      writeFileSync(path, new Uint8Array(1_048_576));
      await copy.attach([{ serial: "L01", path, readOnly: true }]);
      expect(violations(copy)).toEqual([]);
    }
    await nothingIsLeft(host);
  });

  test("continues the commands of its machine: every line exactly once", async () => {
    await using vm = await counting(host);
    await using forked = await fork(host, vm);
    const received = forked.record.processes[0]?.stdout.receivedBytes ?? 0;
    const text = { all: vm.output.text.slice(0, received) };
    // The stand-ins share one guest, which the copy gets when the machine has ended.
    host.guests.continueIn(vm.machine);
    await vm.machine.kill();
    await using copy = await copyOf(host, forked.point, forked.scratch);
    expect(copy.hasNewStream).toBe(true);
    let starts = 0;
    const { processes, connections, agent } = await continueCopy(copy, forked.record, {
      process: () => ({
        onOutput: (_stream, chunk) => {
          text.all += Buffer.from(chunk).toString();
          return undefined;
        },
        onStart: () => {
          starts += 1;
        },
      }),
      network: null,
      signal: AbortSignal.timeout(20_000),
    });
    expect([processes.length, connections.length, starts]).toEqual([1, 0, 0]);
    const before = text.all.length;
    await until("the copy counts", () => text.all.length > before + 100);
    const lines = text.all.split("\n").slice(0, -1).map(Number);
    expect(lines).toEqual(lines.map((_, index) => index + 1));
    processes[0]?.signal(9, { group: true });
    expect(await processes[0]?.exit).toMatchObject({ signal: 9 });
    await agent.flush();
    expect(violations(copy)).toEqual([]);
  });

  test("can be forked in turn, and outlives the fork point, which is released with the last copy", async () => {
    {
      await using vm = await counting(host);
      const forked = await fork(host, vm);
      const [one, two] = [scratchCopy(host, forked.scratch), scratchCopy(host, forked.scratch)];
      await using first = await copyOf(host, forked.point, one);
      const second = await copyOf(host, forked.point, two);
      let isReleased = false;
      void forked.point.released.then(() => {
        isReleased = true;
      });
      await forked[Symbol.asyncDispose]();
      expect(await throwing(copyOf(host, forked.point, one))).toThrow("the saved machine is gone");
      await second[Symbol.asyncDispose]();
      expect(isReleased).toBe(false);
      await first.resume();
      const nested = newPath(host, "scratch");
      const prepared = await first.prepareFork?.({ scratchPath: nested, signal: NEVER });
      await using point = await prepared?.take();
      if (point === undefined) throw new Error("it cannot fork");
      await first[Symbol.asyncDispose]();
      await forked.point.released;
      await using third = await copyOf(host, point, nested);
      expect(violations(third)).toEqual([]);
      expect(content(join(third.directory, "S"))).toBe("scratch");
    }
    await nothingIsLeft(host);
  });

  test.each(["500", "exit"] as const)("that cannot be restored leaves nothing behind: %s", async (how) => {
    {
      await using vm = await counting(host);
      await using forked = await fork(host, vm);
      const entries = readdirSync(host.vmsDirectory);
      host.control({ failures: [{ endpoint: "vm.restore", how }] });
      expect(await throwing(copyOf(host, forked.point, forked.scratch))).toThrow("vm.restore");
      expect(readdirSync(host.vmsDirectory)).toEqual(entries);
      host.control({});
      await using copy = await copyOf(host, forked.point, forked.scratch);
      expect(content(join(copy.directory, "S"))).toBe("scratch");
    }
    await nothingIsLeft(host);
  });

  test("with other disks than its machine is refused", async () => {
    await using vm = await counting(host);
    await using forked = await fork(host, vm);
    const [scratch, layer] = disksOf(host, forked.scratch);
    if (scratch === undefined || layer === undefined) throw new Error("no disks");
    const entries = readdirSync(host.vmsDirectory);
    expect(await throwing(host.vmm.cloneFork?.(forked.point, [scratch]))).toThrow("has other disks");
    const other = { ...layer, serial: "L07" };
    expect(await throwing(host.vmm.cloneFork?.(forked.point, [scratch, other]))).toThrow("lacks the disk L00");
    expect(readdirSync(host.vmsDirectory)).toEqual(entries);
    expect(existsSync(forked.scratch)).toBe(true);
  });
});

test("a fork of a clone has a snapshot of its own next to that of its template", async () => {
  await using template = await buildTemplate(host.vmm, SHAPE, { log: silentLog, signal: NEVER });
  await using machine = await host.vmm.clone(template);
  await machine.attach(blankDisks(host, machine, 1));
  const scratch = newPath(host, "scratch");
  const prepared = await machine.prepareFork?.({ scratchPath: scratch, signal: NEVER });
  await using point = await prepared?.take();
  if (point === undefined) throw new Error("it cannot fork");
  await using copy = await copyOf(host, point, scratch);
  expect(readdirSync(join(copy.directory, "snapshot")).sort()).toEqual(["config.json", "memory-ranges", "state.json"]);
  expect([...violations(machine), ...violations(copy)]).toEqual([]);
});
