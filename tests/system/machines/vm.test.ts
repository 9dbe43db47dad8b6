import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { closeSync, fstatSync, ftruncateSync, openSync, readdirSync, writeSync } from "node:fs";
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { silentLog } from "../../../src/log.ts";
import { seekHole } from "../../../src/system/libc.ts";
import { AgentClosedError } from "../../../src/vm/agent/agent.ts";
import { buildTemplate, syncAgent } from "../../../src/vm/templates.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { footprint, greeted, openVmHost, shell, TEST_SHAPE, type VmHost } from "../../support/guests/vm.ts";
import { pause } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(120_000);

let host: VmHost;
beforeAll(async () => {
  host = await openVmHost();
});
afterAll(() => host[Symbol.asyncDispose]());

const HEX_OF_RANDOM = "head -c 32 /dev/urandom | busybox od -An -vtx1 | busybox tr -d ' \\n'";

describe("a machine", () => {
  test("boots from cold, sends HELLO, and does everything that a clone does", async () => {
    await using machine = await host.vmm.boot(TEST_SHAPE);
    const agent = await greeted(machine);
    await syncAgent(agent);
    await machine.attach(await host.disks(machine));
    await agent.mount({ layers: 1, scratch: true });
    expect((await shell(agent, "echo cold")).stdout).toBe("cold\n");
  });

  test("is cloned from a template, and has the right time", async () => {
    await using test = await host.mounted();
    const before = Date.now() / 1000;
    const result = await shell(test.agent, "date +%s");
    expect(result.exitCode).toBe(0);
    const seconds = Number(result.stdout);
    expect(seconds).toBeGreaterThanOrEqual(Math.floor(before));
    expect(seconds).toBeLessThan(Date.now() / 1000 + 30);
  });

  test("has random numbers of its own", async () => {
    const [first, second] = await Promise.all([host.mounted(), host.mounted()]);
    await using _first = first;
    await using _second = second;
    const results = await Promise.all([first, second].map(({ agent }) => shell(agent, HEX_OF_RANDOM)));
    const [one = "", two = ""] = results.map(({ stdout }) => stdout);
    expect(one).toMatch(/^[0-9a-f]{64}$/);
    expect(two).toMatch(/^[0-9a-f]{64}$/);
    expect(one).not.toBe(two);
  });

  test("takes many disks at once, each under its serial", async () => {
    await using test = await host.clone();
    const [base, scratch] = await host.disks(test.machine);
    if (base === undefined || scratch === undefined) throw new Error("no disks");
    const layers = Array.from({ length: 20 }, (_, index) => ({
      ...base,
      serial: `L${String(index).padStart(2, "0")}`,
    }));
    await test.machine.attach([...layers, scratch]);
    await test.agent.mount({ layers: layers.length, scratch: true });
    const result = await shell(test.agent, "busybox grep -c lowerdir=/l/19 /proc/mounts");
    expect(result.stdout).toBe("1\n");
    const link = await stat(join(test.machine.directory, "L19"));
    expect(link.ino).toBe((await stat(base.path)).ino);
  });

  test("detaches its disks, and takes others under the same serials", async () => {
    await using test = await host.mounted();
    expect((await shell(test.agent, "echo first > /root/file")).exitCode).toBe(0);
    // Without this, a machine is never used a second time.
    if (test.machine.detach === undefined) return;
    await test.agent.freeze();
    await test.agent.release();
    await test.machine.detach();
    expect(readdirSync(test.machine.directory)).toEqual([]);
    await test.machine.attach(await host.disks(test.machine));
    await test.agent.mount({ layers: 1, scratch: true });
    expect(
      (await shell(test.agent, "cat /root/file; busybox ls /sys/class/scsi_disk")).stdout.trim().split(/\s+/).length,
    ).toBe(2);
  });

  test("keeps its disks while they are mounted", async () => {
    await using test = await host.mounted();
    expect(await throwing(test.agent.release())).toThrow("no disks can be released");
  });

  test("refuses disks at other paths, or with other serials", async () => {
    await using test = await host.clone();
    const disk = { serial: "S", path: "/tmp/elsewhere", readOnly: false };
    expect(await throwing(test.machine.attach([disk]))).toThrow("must lie at");
    expect(await throwing(test.machine.attach([{ ...disk, serial: "../x" }]))).toThrow("not a disk serial");
    expect(await throwing(test.machine.attach([{ serial: "L00", path: "/nowhere", readOnly: true }]))).toThrow(
      "ENOENT",
    );
  });

  test("does not run while it is paused", async () => {
    await using test = await host.clone();
    await test.machine.pause();
    const frozen = test.agent.freeze().then(
      () => "answered",
      () => "refused",
    );
    expect(await Promise.race([frozen, pause("it would answer", 300).then(() => "silent")])).toBe("silent");
    await test.machine.resume();
    expect(await frozen).not.toBe("silent");
  });
});

describe("the end of a machine", () => {
  test("by kill is reported as such, repeatedly", async () => {
    await using test = await host.clone();
    expect((await test.machine.kill()).reason).toBe("killed");
    expect((await test.machine.kill()).reason).toBe("killed");
    expect((await test.machine.exited).reason).toBe("killed");
    expect(await test.machine.cgroup.pids()).toEqual([]);
    expect(await failureOf(test.agent.freeze())).toBeInstanceOf(AgentClosedError);
  });

  test("by the VMM's death is reported with its signal", async () => {
    await using test = await host.clone();
    process.kill(test.machine.pid, "SIGKILL");
    const exit = await test.machine.exited;
    expect(exit.reason).toBe("vmm_died");
    const name = { qemu: "QEMU", "cloud-hypervisor": "Cloud Hypervisor" }[host.vmm.name];
    expect(exit).toMatchObject({ monitor: `${name}, killed by signal 9`, by: "signal" });
    // The program may have written warnings before.
    expect(exit.detail).toStartWith(`${name} was killed by signal 9`);
    expect(await failureOf(test.agent.freeze())).toBeInstanceOf(AgentClosedError);
  });

  test("by a signal that asks the VMM to end is not blamed on the guest", async () => {
    await using test = await host.clone();
    process.kill(test.machine.pid, "SIGTERM");
    expect(await test.machine.exited).toMatchObject({ reason: "vmm_died", by: "signal" });
  });

  test("by a guest panic is reported with the guest's console", async () => {
    await using test = await host.mounted();
    const script = "mkdir -p /p && mount -t proc proc /p && echo 1 > /p/sys/kernel/sysrq; echo c > /p/sysrq-trigger";
    const run = shell(test.agent, script);
    expect(await failureOf(run)).toBeInstanceOf(AgentClosedError);
    const exit = await test.machine.exited;
    expect(exit.reason).toBe("guest_panic");
    expect(exit.detail).toContain("sysrq triggered crash");
  });

  test("by a reset of the guest is reported, too", async () => {
    await using test = await host.mounted();
    const script = "mkdir -p /p && mount -t proc proc /p && echo 1 > /p/sys/kernel/sysrq; echo b > /p/sysrq-trigger";
    expect(await failureOf(shell(test.agent, script))).toBeInstanceOf(AgentClosedError);
    expect((await test.machine.exited).reason).toBe("guest_reset");
  });

  test("of twenty in a row leaves no descriptor, process, control group, directory or user id", async () => {
    {
      await using _warm = await host.mounted();
    }
    Bun.gc(true);
    const before = footprint(host);
    for (let round = 0; round < 20; round++) {
      await using test = await host.mounted();
      expect((await shell(test.agent, "echo x > /x")).exitCode).toBe(0);
      // Every third one ends during its work.
      if (round % 3 === 0) shell(test.agent, "sleep 100").catch(() => undefined);
    }
    Bun.gc(true);
    expect(footprint(host)).toEqual(before);
    expect(before.directories).toEqual([]);
    expect(before.children).toEqual([]);
    expect(await host.cgroups.list()).toEqual([]);
  });

  test("in a failed start leaves nothing behind either", async () => {
    const before = footprint(host);
    expect(await throwing(host.vmm.boot({ ...TEST_SHAPE, vcpus: 9999 }))).toThrow(/QEMU did not start.*9999/s);
    expect(footprint(host)).toEqual(before);
    expect(await host.cgroups.list()).toEqual([]);
  });
});

test("a disposed template cannot be cloned", async () => {
  const template = await buildTemplate(host.vmm, TEST_SHAPE, { log: silentLog, signal: new AbortController().signal });
  await template[Symbol.asyncDispose]();
  expect(await throwing(host.vmm.clone(template))).toThrow("the saved machine is gone");
});

test("a template's memory cannot be changed, and all of it is allocated", async () => {
  const { descriptors } = (await host.template()) as unknown as { descriptors: { memory: number; state: number } };
  for (const fd of [descriptors.memory, descriptors.state]) {
    const link = `/proc/self/fd/${fd}`;
    const copy = openSync(link, "r+");
    expect(() => writeSync(copy, "x", 0)).toThrow("EPERM");
    expect(() => ftruncateSync(copy, 0)).toThrow("EPERM");
    const { size } = fstatSync(copy);
    // A page in a hole would be allocated on its first access.
    expect(seekHole(copy, 0)).toBe(size);
    closeSync(copy);
  }
});
