import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { silentLog } from "../../../../src/log.ts";
import type { CloudHypervisorMachine } from "../../../../src/vm/cloud-hypervisor/machine.ts";
import { CpuWeight } from "../../../../src/vm/cpu-weight.ts";
import { buildTemplate } from "../../../../src/vm/templates.ts";
import type { Disk, Machine } from "../../../../src/vm/vmm.ts";
import {
  blankDisks,
  callsOf,
  DESCRIPTION_PATH,
  SHAPE,
  StandInHost,
  violationsOf,
} from "../../../support/cloud-hypervisor/cloud-hypervisor.ts";
import { throwing } from "../../../support/failures.ts";
import { greeted, ready, shell } from "../../../support/guests/vm.ts";

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
const template = () => buildTemplate(host.vmm, SHAPE, { log: silentLog, signal: NEVER });

const disks = (machine: Machine, layers: number): Disk[] => blankDisks(host, machine, layers);

async function nothingIsLeft(): Promise<void> {
  expect(readdirSync(host.vmsDirectory)).toEqual([]);
  expect(await host.cgroups.list()).toEqual([]);
}

describe("the description of the API", () => {
  test.skipIf(DESCRIPTION_PATH === undefined)("is given to the tests (needs COPPICE_TEST_CH_OPENAPI)", async () => {
    await using machine = await host.vmm.boot(SHAPE);
    host.control({ refusals: true });
    // A stand-in that accepts everything would prove nothing.
    const api = (machine as CloudHypervisorMachine).api as unknown as { addDisk(config: object): Promise<unknown> };
    await api.addDisk({ path: "/vm/L00", image_type: "raw", read_only: true }).catch(() => undefined);
    const problems = violations(machine).join("\n");
    expect(problems).toContain('"raw" is none of');
    expect(problems).toContain("vm.add-disk.read_only: not a known property");
  });
});

test("a writable disk is copied by the host, without a request to the monitor", async () => {
  await using machine = await host.vmm.boot(SHAPE);
  await machine.attach(disks(machine, 1));
  writeFileSync(join(machine.directory, "S"), "before");
  const before = calls(machine);
  const path = join(host.directory, "copy");
  await using copy = await machine.copyDisk({ serial: "S", path, pauseMsMax: 5000, signal: NEVER });
  writeFileSync(join(machine.directory, "S"), "now");
  await copy.finish();
  await copy.seal();
  expect(readFileSync(path, "utf8")).toBe("now");
  expect(calls(machine)).toEqual(before);
});

describe("an instance's life", () => {
  test("boots from cold, accepts disks, runs a command, and ends", async () => {
    await using machine = await host.vmm.boot(SHAPE);
    const agent = await greeted(machine);
    await machine.attach(disks(machine, 2));
    await agent.mount({ layers: 1, scratch: true });
    expect(await shell(agent, "echo out; exit 3", { env: { PATH: "/usr/bin:/bin" } })).toMatchObject({
      stdout: "out\n",
      exitCode: 3,
    });
    expect(calls(machine)).toEqual(["vm.create", "vm.boot", "vm.add-disk", "vm.add-disk", "vm.add-disk"]);
    expect(violations(machine)).toEqual([]);
    expect(await machine.kill()).toEqual({ reason: "killed", detail: "killed by the host" });
  });

  test("as a waiting clone, has a small share of the processors from its start", async () => {
    await using saved = await template();
    await using waiting = await host.vmm.clone(saved, CpuWeight.waiting);
    await using used = await host.vmm.clone(saved);
    const weight = ({ cgroup }: Machine) =>
      cgroup.directories
        .flatMap((directory) => ["cpu.weight", "cpu.shares"].map((name) => join(directory, name)))
        .filter((path) => existsSync(path))
        .map((path) => Number(readFileSync(path, "utf8")))[0] ?? Number.NaN;
    expect(weight(waiting)).toBeLessThan(weight(used) / 2);
  });

  test("starts as a clone of a template, with a stream of its own", async () => {
    {
      await using saved = await template();
      await using one = await ready(await host.vmm.clone(saved));
      await using two = await ready(await host.vmm.clone(saved));
      for (const { machine, agent } of [one, two]) {
        await machine.attach(disks(machine, 1));
        await agent.mount({ layers: 1, scratch: true });
        const { stdout } = await shell(agent, "echo $HERE", { env: { PATH: "/bin", HERE: machine.id } });
        expect(stdout).toBe(`${machine.id}\n`);
        expect(calls(machine)).toEqual(["vm.restore", "vm.info", "vm.resume", "vm.add-disk", "vm.add-disk"]);
        expect(violations(machine)).toEqual([]);
      }
    }
    await nothingIsLeft();
  });

  test("accepts 128 layers and a scratch, on several PCI segments", async () => {
    await using saved = await template();
    await using machine = await host.vmm.clone(saved);
    await machine.attach(disks(machine, 128));
    expect(violations(machine)).toEqual([]);
  });

  test("pauses and resumes", async () => {
    await using saved = await template();
    await using clone = await ready(await host.vmm.clone(saved));
    await clone.machine.pause();
    expect(await (clone.machine as CloudHypervisorMachine).api.info()).toEqual({ state: "Paused" });
    await clone.machine.resume();
    expect(await (clone.machine as CloudHypervisorMachine).api.info()).toEqual({ state: "Running" });
    expect(violations(clone.machine)).toEqual([]);
  });

  test("leaves a template that no VMM can change, and whose clones outlive its disposal", async () => {
    const saved = await template();
    const [name = ""] = readdirSync(host.vmsDirectory);
    for (const file of ["config.json", "state.json", "memory-ranges"]) {
      const { mode, uid } = statSync(join(host.vmsDirectory, name, file));
      expect([file, mode & 0o777, uid]).toEqual([file, 0o444, 0]);
    }
    await using machine = await host.vmm.clone(saved);
    await saved[Symbol.asyncDispose]();
    const { size, blocks } = statSync(join(machine.directory, "snapshot/memory-ranges"));
    // Zeros are holes, which a clone does not copy.
    expect([size, blocks * 512 < 1_048_576]).toEqual([SHAPE.memoryBytes, true]);
  });

  test("makes the directory of the sockets inaccessible to the VMM once they exist", async () => {
    await using machine = await host.vmm.boot(SHAPE);
    const { mode, uid } = statSync(join(machine.directory, "run"));
    expect([mode & 0o777, uid]).toEqual([0o710, 0]);
    expect(machine.uid).toBeGreaterThan(0);
  });
});

describe("a failing call", () => {
  const WAYS = ["500", "die", "exit", "garbage", "close", "flood"] as const;
  const of = (endpoint: string) => WAYS.map((how) => [endpoint, how] as const);

  test.each([...of("vm.create"), ...of("vm.boot"), ...of("vmm.ping")])(
    "ends a boot: %s by %s",
    async (endpoint, how) => {
      host.control({ failures: [{ endpoint, how }] });
      expect(await throwing(host.vmm.boot(SHAPE))).toThrow(/Cloud Hypervisor|vm\.|vmm\./);
      host.control({});
      await nothingIsLeft();
    },
  );

  test.each(["vm.pause", "vm.snapshot", "vm.shutdown", "vmm.shutdown"])("leaves no template: %s", async (endpoint) => {
    host.control({ failures: [{ endpoint, how: "500" }] });
    expect(await throwing(template())).toThrow(endpoint);
    await nothingIsLeft();
  });

  test.each(["vm.restore", "vm.info", "vm.resume"])("leaves no clone: %s", async (endpoint) => {
    {
      await using saved = await template();
      host.control({ failures: [{ endpoint, how: "exit" }] });
      expect(await throwing(host.vmm.clone(saved))).toThrow(endpoint);
      expect(readdirSync(host.vmsDirectory)).toHaveLength(1);
    }
    await nothingIsLeft();
  });

  test("removes the disks that were added before the refused one", async () => {
    await using saved = await template();
    host.control({ failures: [{ endpoint: "vm.add-disk", how: "500", skip: 2 }] });
    await using machine = await host.vmm.clone(saved);
    expect(await throwing(machine.attach(disks(machine, 3)))).toThrow("made to fail");
    const seen = calls(machine).slice(3);
    expect(seen).toEqual([...Array(3).fill("vm.add-disk"), ...Array(2).fill("vm.remove-device")]);
    expect(violations(machine)).toEqual([]);
  });

  test("that is never answered fails after its time limit", async () => {
    host.control({ failures: [{ endpoint: "vm.create", how: "hang" }] });
    expect(await throwing(host.vmm.boot(SHAPE))).toThrow("no answer within 10000 ms");
    await nothingIsLeft();
  });
});

describe("an end", () => {
  const after = (source: string, event: string, properties?: Record<string, string>) => ({
    events: [{ after: "vm.boot", source, event, ...(properties === undefined ? {} : { properties }) }],
  });

  test("by a panic of the guest is reported with the end of the console", async () => {
    host.control({
      ...after("guest", "panic", { event: "panic" }),
      console: "Kernel panic - not syncing: \u001b[1moh\r\n",
    });
    await using machine = await host.vmm.boot(SHAPE);
    const { reason, detail } = await machine.exited;
    expect(reason).toBe("guest_panic");
    expect(detail).toContain("its console: Kernel panic - not syncing: ?[1moh");
  });

  test.each(["52.0", "53.0"])(
    "of a clone under v%s shows its console, although v53 is read only then",
    async (version) => {
      await using other = await StandInHost.open(version);
      await using saved = await buildTemplate(other.vmm, SHAPE, { log: silentLog, signal: NEVER });
      const events = [{ after: "vm.add-disk", source: "guest", event: "panic" }];
      other.control({ events, console: "Kernel panic - not syncing: clone" });
      await using machine = await other.vmm.clone(saved);
      await machine.attach([{ serial: "L00", path: join(other.directory, "kernel"), readOnly: true }]);
      expect((await machine.exited).detail).toContain("its console: Kernel panic - not syncing: clone");
    },
  );

  test("by a reset is distinguished from a panic by the console alone", async () => {
    host.control(after("vm", "rebooting"));
    await using plain = await host.vmm.boot(SHAPE);
    expect((await plain.exited).reason).toBe("guest_reset");
    host.control({ ...after("vm", "rebooting"), console: "Kernel panic - not syncing: late" });
    await using panicked = await host.vmm.boot(SHAPE);
    expect((await panicked.exited).reason).toBe("guest_panic");
  });

  test("by a power-off leaves the VMM, which is then killed", async () => {
    host.control(after("vm", "shutdown"));
    await using machine = await host.vmm.boot(SHAPE);
    expect(await machine.exited).toEqual({ reason: "guest_shutdown", detail: "the guest is off" });
  });

  test("by a signal that asks the VMM to end is not blamed on the guest", async () => {
    await using machine = await host.vmm.boot(SHAPE);
    process.kill(machine.pid, "SIGTERM");
    expect(await machine.exited).toMatchObject({ reason: "vmm_died", by: "signal" });
  });

  test("of the VMM is reported with its output", async () => {
    host.control(after("stderr", "vCPU thread panicked"));
    await using machine = await host.vmm.boot(SHAPE);
    const { reason, detail } = await machine.exited;
    expect([reason, detail]).toEqual([
      "vmm_died",
      "Cloud Hypervisor ended with exit code 2: stand-in: vCPU thread panicked",
    ]);
  });

  test("is forced on a VMM with malformed events", async () => {
    host.control(after("raw", "{ nonsense\n\n"));
    await using machine = await host.vmm.boot(SHAPE);
    const { reason, detail } = await machine.exited;
    expect([reason, detail]).toEqual(["vmm_died", "Cloud Hypervisor broke its protocol: an event is not JSON"]);
  });

  test("closes the agent's stream", async () => {
    await using machine = await host.vmm.boot(SHAPE);
    const agent = await greeted(machine);
    await agent.mount({ layers: 1, scratch: true });
    const lost = shell(agent, "sleep 60");
    process.kill(machine.pid, "SIGKILL");
    expect(await throwing(lost)).toThrow();
    expect((await machine.exited).reason).toBe("vmm_died");
  });
});
