import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, readlinkSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { openCgroupTree } from "../../../../src/cgroup/cgroup.ts";
import { silentLog } from "../../../../src/log.ts";
import { Agent } from "../../../../src/vm/agent/agent.ts";
import { openCloudHypervisor } from "../../../../src/vm/cloud-hypervisor/cloud-hypervisor.ts";
import { buildDiskConfig, buildVmConfig, DISKS_COUNT_MAX } from "../../../../src/vm/cloud-hypervisor/config.ts";
import type { CloudHypervisorMachine } from "../../../../src/vm/cloud-hypervisor/machine.ts";
import { continueCopy } from "../../../../src/vm/copy-agent.ts";
import { recordProblem } from "../../../../src/vm/jail/existing-vmm.ts";
import { LANDLOCK_VERSION_MIN, landlockVersion } from "../../../../src/vm/jail/landlock.ts";
import { UidPool } from "../../../../src/vm/jail/uid-pool.ts";
import { buildTemplate, syncAgent } from "../../../../src/vm/templates.ts";
import type { Disk, Machine } from "../../../../src/vm/vmm.ts";
import { absence, guestAbsence, openRealHost, PROGRAM, type RealHost } from "../../../support/cloud-hypervisor/real.ts";
import { throwing } from "../../../support/failures.ts";
import { builtAssets, greeted, ready, TEST_SHAPE } from "../../../support/guests/vm.ts";

setDefaultTimeout(60_000);

const NEVER = new AbortController().signal;
const missing = absence();
const withoutGuest = await guestAbsence();

const own = (machine: Machine) => machine as CloudHypervisorMachine;
const rollup = ({ pid }: Machine) => readFileSync(`/proc/${pid}/smaps_rollup`, "utf8");
const fields = (text: string) => new Map(text.split("\n").map((line) => line.split(/:\s*/, 2) as [string, string]));

function disks(machine: Machine, count: number): Disk[] {
  return Array.from({ length: count }, (_, index) => {
    const serial = index === count - 1 ? "S" : `L${String(index).padStart(2, "0")}`;
    const path = serial === "S" ? join(machine.directory, serial) : join(machine.directory, "..", `layer-${serial}`);
    writeFileSync(path, "");
    truncateSync(path, 1_048_576);
    return { serial, path, readOnly: serial !== "S" };
  });
}

describe("a program that is too old", () => {
  test("is refused, and the error names the needed version", async () => {
    const directory = await mkdtemp("/tmp/coppice-ch-");
    const program = join(directory, "cloud-hypervisor");
    writeFileSync(program, "#!/bin/sh\necho cloud-hypervisor v51.1\n");
    await chmod(program, 0o755);
    await using cgroups = await openCgroupTree({ namespace: `coppice-ch-old-${process.pid}` });
    const opened = openCloudHypervisor({
      assets: builtAssets(),
      vmsDirectory: directory,
      runtimeDirectory: directory,
      cgroups,
      diskBytesMax: 0,
      uids: new UidPool(1, 1),
      log: silentLog,
      program,
    });
    expect(await throwing(opened)).toThrow(`Cloud Hypervisor v51.1 (${program}) is too old: v52.0 or newer is needed`);
    await rm(directory, { recursive: true });
  });
});

describe.skipIf(missing !== null)(`the real program (needs KVM and Cloud Hypervisor: ${missing ?? PROGRAM})`, () => {
  let host: RealHost;
  let machine: Machine;
  beforeAll(async () => {
    // Longer than the path of a socket may be.
    host = await openRealHost("a-directory-with-a-long-name-".repeat(6));
    machine = await host.vmm.boot(TEST_SHAPE);
  });
  afterAll(async () => {
    await machine[Symbol.asyncDispose]();
    expect(readdirSync(host.vmsDirectory).filter((name) => !name.startsWith("layer-"))).toEqual([]);
    expect(await host.cgroups.list()).toEqual([]);
    await host[Symbol.asyncDispose]();
  });
  const status = (thread: string) => fields(readFileSync(`/proc/${machine.pid}/task/${thread}/status`, "utf8"));

  test("boots with KVM, and reports its version", async () => {
    expect(await own(machine).api.info()).toEqual({ state: "Running" });
    expect(host.vmm.version).toMatch(/^\d+\.\d+/);
    expect(Number((await own(machine).api.ping()).version.split(".")[0])).toBeGreaterThanOrEqual(52);
  });

  test("with KVM runs as a user of its own without privileges, in namespaces of its own", () => {
    for (const thread of readdirSync(`/proc/${machine.pid}/task`)) {
      const own = status(thread);
      const { uid } = machine;
      expect(own.get("Uid")).toBe([uid, uid, uid, uid].join("\t"));
      expect(own.get("Gid")).toBe([uid, uid, uid, uid].join("\t"));
      expect(own.get("Groups")?.trim()).toBe("");
      for (const set of ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]) expect(own.get(set)).toBe("0".repeat(16));
      expect(own.get("NoNewPrivs")).toBe("1");
    }
    const differs = (name: string) =>
      readlinkSync(`/proc/${machine.pid}/ns/${name}`) !== readlinkSync(`/proc/self/ns/${name}`);
    expect(["mnt", "net", "ipc", "uts", "pid", "cgroup"].filter((name) => !differs(name))).toEqual([]);
  });

  test("with KVM filters the system calls of every thread but the first one, which only waits", () => {
    const threads = readdirSync(`/proc/${machine.pid}/task`);
    // KVM's kernel thread is included. It has the filter of its creator.
    const names = threads.map((thread) => status(thread).get("Name"));
    expect(names).toContain("vmm");
    expect(names).toContain("vcpu0");
    expect(names).toContain("http-server");
    for (const thread of threads) {
      if (thread !== String(machine.pid))
        expect([status(thread).get("Name"), status(thread).get("Seccomp")]).toEqual([status(thread).get("Name"), "2"]);
    }
  });

  test("with KVM sees its directory, its program, and devices of its own", () => {
    const root = `/proc/${machine.pid}/root`;
    const mounts = readFileSync(`/proc/${machine.pid}/mountinfo`, "utf8")
      .trim()
      .split("\n")
      .map((line) => line.split(" ")[4]);
    expect(mounts).toEqual(["/", "/vm", "/dev", "/proc"]);
    expect(readdirSync(`${root}/dev`).sort()).toEqual(["kvm", "null", "urandom", "zero"]);
    expect(readdirSync(`${root}/vm`).sort()).toEqual(["api.sock", "initramfs", "run", "vmlinux"]);
    const run = statSync(join(machine.directory, "run"));
    expect([run.mode & 0o777, run.uid]).toEqual([0o710, 0]);
    const api = statSync(join(machine.directory, "api.sock"));
    expect([api.isSocket(), api.uid]).toEqual([true, 0]);
  });

  test.skipIf(landlockVersion() < LANDLOCK_VERSION_MIN)(
    "with KVM is confined to its directory by Landlock",
    async () => {
      // Without Landlock the program could read itself, as the launcher permits it.
      const program = { ...buildDiskConfig("X", true, 0), path: PROGRAM ?? "" };
      expect(await throwing(own(machine).api.addDisk(program))).toThrow("Permission denied");
    },
  );

  test("with KVM refuses invalid requests, and continues", async () => {
    const { api } = own(machine);
    expect(await throwing(api.create(buildVmConfig(TEST_SHAPE, false)))).toThrow("vm.create");
    expect(await throwing(api.boot())).toThrow("vm.boot");
    expect(await throwing(api.resume())).toThrow("vm.resume");
    expect(await throwing(api.removeDevice("nothing"))).toThrow("vm.remove-device");
    expect(await throwing(api.addDisk({ ...buildDiskConfig("X", true, 0), path: "/vm/absent" }))).toThrow(
      "No such file",
    );
    expect(await throwing(api.snapshot("file:///vm/absent", 0))).toThrow("vm.snapshot");
    expect(await api.info()).toEqual({ state: "Running" });
  });

  test("with KVM accepts 128 layers and a scratch, and no two disks of one name", async () => {
    await using full = await host.vmm.boot(TEST_SHAPE);
    await full.attach(disks(full, 129));
    const { api } = own(full);
    expect(await throwing(api.addDisk({ ...buildDiskConfig("S", false, 129), path: "/vm/L00" }))).toThrow(
      "vm.add-disk",
    );
    expect(DISKS_COUNT_MAX).toBeGreaterThan(129);
  });

  test("with KVM is as recorded, also where the kernel has a thread of its own in the control group", async () => {
    const record = machine.record?.();
    if (record === undefined) throw new Error("it cannot be recorded");
    expect(await recordProblem(record, machine.cgroup)).toBeNull();
  });

  test("with KVM pauses and resumes", async () => {
    await machine.pause();
    expect(await own(machine).api.info()).toEqual({ state: "Paused" });
    await machine.resume();
    expect(await own(machine).api.info()).toEqual({ state: "Running" });
  });

  test("with KVM ends on request, and leaves nothing behind", async () => {
    const ended = await host.vmm.boot(TEST_SHAPE);
    await own(ended).end();
    expect((await ended.exited).reason).toBe("vmm_died");
    await ended[Symbol.asyncDispose]();
    expect(existsSync(ended.directory)).toBe(false);
  });

  test("with KVM that crashes is distinguished from one that is killed", async () => {
    await using died = await host.vmm.boot(TEST_SHAPE);
    process.kill(died.pid, "SIGKILL");
    const { reason, detail } = await died.exited;
    expect(reason).toBe("vmm_died");
    // The program may have written warnings before.
    expect(detail).toStartWith("Cloud Hypervisor was killed by signal 9");
    await using killed = await host.vmm.boot(TEST_SHAPE);
    expect((await killed.kill()).reason).toBe("killed");
  });

  test("with KVM without a kernel fails, and leaves nothing behind", async () => {
    await using other = await openRealHost("vms");
    const nonsense = join(other.vmsDirectory, "../nonsense");
    writeFileSync(nonsense, "no kernel", { mode: 0o444 });
    await using cgroups = await openCgroupTree({ namespace: `coppice-ch-none-${process.pid}` });
    const vmm = await openCloudHypervisor({
      assets: { ...builtAssets(), kernel: nonsense },
      vmsDirectory: other.vmsDirectory,
      runtimeDirectory: join(other.vmsDirectory, "../run"),
      cgroups,
      diskBytesMax: 0,
      uids: new UidPool(786_000, 10),
      log: silentLog,
      ...(PROGRAM === null ? {} : { program: PROGRAM }),
    });
    expect(await throwing(vmm.boot(TEST_SHAPE))).toThrow("vm.boot");
    expect(readdirSync(other.vmsDirectory)).toEqual([]);
    expect(await cgroups.list()).toEqual([]);
  });
});

describe.skipIf(withoutGuest !== null)(
  `guests of the real program (needs KVM and Cloud Hypervisor: ${withoutGuest ?? PROGRAM})`,
  () => {
    test("with KVM can be saved and cloned, and each clone answers on a stream of its own", async () => {
      await using host = await openRealHost("vms");
      await using template = await buildTemplate(host.vmm, TEST_SHAPE, { log: silentLog, signal: NEVER });
      await using one = await ready(await host.vmm.clone(template));
      await using two = await ready(await host.vmm.clone(template));
      for (const { machine } of [one, two]) {
        await machine.attach(disks(machine, 2));
        expect(await own(machine).api.info()).toEqual({ state: "Running" });
        // It has only what the template has touched.
        const { rssKiB = "" } = /^Rss:\s+(?<rssKiB>\d+) kB$/m.exec(rollup(machine))?.groups ?? {};
        expect(Number(rssKiB) * 1024).toBeLessThan(TEST_SHAPE.memoryBytes / 1.5);
      }
    });

    test("with KVM can be forked as soon as they are cloned, and the copies continue", async () => {
      await using host = await openRealHost("vms");
      await using template = await buildTemplate(host.vmm, TEST_SHAPE, { log: silentLog, signal: NEVER });
      await using clone = await ready(await host.vmm.clone(template));
      const { machine, agent } = clone;
      await machine.attach(disks(machine, 1));
      const scratch = join(host.vmsDirectory, "fork-scratch");
      const prepared = await machine.prepareFork?.({ scratchPath: scratch, signal: NEVER });
      await agent.hold();
      await using point = await prepared?.take();
      const record = agent.record();
      await syncAgent(agent);
      if (point === undefined) throw new Error("it cannot fork");
      expect(point.pausedMs).toBeGreaterThan(0);
      const disk = { serial: "S", path: scratch, readOnly: false };
      await using copy = await host.vmm.cloneFork?.(point, [disk]);
      if (copy === undefined) throw new Error("it cannot copy");
      const options = { process: () => ({ onOutput: () => undefined }), network: null, signal: NEVER };
      const continued = await continueCopy(copy, record, options);
      await syncAgent(continued.agent);
      expect(await own(copy).api.info()).toEqual({ state: "Running" });
    });

    test("with KVM greets the next host, as often as one comes", async () => {
      await using host = await openRealHost("vms");
      await using machine = await host.vmm.boot(TEST_SHAPE);
      await greeted(machine);
      for (let round = 0; round < 3; round++) {
        const channel = await machine.reconnect?.();
        const reconnect = machine.reconnect?.bind(machine);
        if (channel === undefined || reconnect === undefined) throw new Error("it cannot be connected to");
        const { agent } = await Agent.reconnect({ channel, reconnect }, { network: null, signal: NEVER });
        agent.proceed();
        await syncAgent(agent);
      }
    });
  },
);
