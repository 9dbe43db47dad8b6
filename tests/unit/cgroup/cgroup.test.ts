import { describe, expect, test } from "bun:test";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { skippingMissing } from "../../../src/cgroup/cgroup-files.ts";
import { findHierarchies } from "../../../src/cgroup/hierarchy.ts";
import { CgroupGoneError, parseKeyed, parseNumber, readStats, samples } from "../../../src/cgroup/stats.ts";
import { FakeKernel, v1Files, v2Files } from "../../support/appliance/fake-kernel.ts";
import { failureOf, throwing } from "../../support/failures.ts";

const V1_MOUNTS = [
  "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755",
  "32 31 0:29 / /cg/cpu rw,relatime - cgroup cgroup rw,cpu",
  "33 31 0:30 / /cg/cpuacct rw,relatime - cgroup cgroup rw,cpuacct",
  "35 31 0:32 / /cg/memory rw,relatime - cgroup cgroup rw,memory",
  "37 31 0:34 / /cg/freezer rw,relatime - cgroup cgroup rw,freezer",
  "39 31 0:36 / /cg/pids rw,relatime - cgroup cgroup rw,pids",
  "41 31 0:38 / /cg/unified rw,relatime - cgroup2 cgroup2 rw",
].join("\n");
const V1_SELF = "9:pids:/\n7:freezer:/x\n4:memory:/service/a\n2:cpuacct:/\n1:cpu:/\n0::/svc\n";
const V2_MOUNTS = "30 23 0:26 / /cg rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";

const LIMITS = { memoryBytes: 1000, pids: 7, cpuWeight: 50 };

async function openV1(kernel: FakeKernel, more: { cpuWeight?: number } = {}) {
  const killProcess = (pid: number) => kernel.kill(pid);
  return await openCgroupTree({
    namespace: "ns",
    files: kernel,
    mountinfo: V1_MOUNTS,
    selfCgroup: V1_SELF,
    killProcess,
    ...more,
  });
}

async function openV2(kernel: FakeKernel, selfCgroup = "0::/system.slice/coppice.service\n") {
  const killProcess = (pid: number) => kernel.kill(pid);
  return await openCgroupTree({
    namespace: "ns",
    files: kernel,
    mountinfo: V2_MOUNTS,
    selfCgroup,
    pid: 42,
    cpuWeight: 30,
    killProcess,
  });
}

const V1_TREES = ["/cg/cpu", "/cg/cpuacct", "/cg/memory/service/a", "/cg/pids", "/cg/unified/svc"];

describe("hierarchies", () => {
  test("of a hybrid host are the trees with the needed controllers and the unified one", () => {
    expect(findHierarchies(V1_MOUNTS, V1_SELF).map(({ version, own }) => `${version} ${own}`)).toEqual([
      "v1 /cg/cpu",
      "v1 /cg/cpuacct",
      "v1 /cg/memory/service/a",
      "v1 /cg/pids",
      "v2 /cg/unified/svc",
    ]);
  });

  test("of a container begin at the mount's root, and paths may contain blanks", () => {
    const mounts = "30 23 0:26 /docker/7 /my\\040cg rw - cgroup2 cgroup2 rw";
    expect(findHierarchies(mounts, "0::/docker/7/inner\n")[0]?.own).toBe("/my cg/inner");
    expect(findHierarchies(mounts, "0::/docker/7\n")[0]?.own).toBe("/my cg");
    expect(findHierarchies(mounts, "0::/\n")[0]?.own).toBe("/my cg");
  });

  test("are an error on a host that has none", async () => {
    expect(await throwing(openCgroupTree({ namespace: "ns", mountinfo: "", selfCgroup: "" }))).toThrow(
      "no control groups",
    );
  });
});

describe("groups on v1", () => {
  test("together have the default share of the processors", async () => {
    const kernel = new FakeKernel(V1_TREES, v1Files);
    await openV1(kernel, { cpuWeight: 50 });
    expect(kernel.read("/cg/cpu/ns/cpu.shares")).toBe("1024");
  });

  test("have their limits in every tree", async () => {
    const kernel = new FakeKernel(V1_TREES, v1Files);
    const tree = await openV1(kernel);
    expect([tree.version, tree.missing]).toEqual(["v1", []]);
    const group = await tree.create("vm1", LIMITS);
    expect(group.directories).toEqual(V1_TREES.map((parent) => `${parent}/ns/vm1`));
    expect(kernel.read("/cg/memory/service/a/ns/vm1/memory.limit_in_bytes")).toBe("1000");
    expect(kernel.read("/cg/memory/service/a/ns/vm1/memory.memsw.limit_in_bytes")).toBe("1000");
    expect(kernel.read("/cg/cpu/ns/vm1/cpu.shares")).toBe("512");
    group.setCpuWeight(5);
    expect(kernel.read("/cg/cpu/ns/vm1/cpu.shares")).toBe("51");
    expect(kernel.read("/cg/pids/ns/vm1/pids.max")).toBe("7");
    expect(await group.stats()).toEqual({
      cpuTimeMs: 2500,
      memoryBytes: 4096,
      memoryPeakBytes: 8192,
      cacheBytes: 2000,
      pids: 3,
    });
  });

  test("are killed process by process in every tree, except the caller itself", async () => {
    const kernel = new FakeKernel(V1_TREES, v1Files);
    const tree = await openV1(kernel);
    const group = await tree.create("vm1", {});
    kernel.files.set("/cg/cpu/ns/vm1/cgroup.procs", "11\n");
    kernel.files.set("/cg/pids/ns/vm1/cgroup.procs", "11\n12\n");
    expect(await group.pids()).toEqual([11, 12]);
    kernel.busyFor.set("/cg/pids/ns/vm1", 2);
    await group[Symbol.asyncDispose]();
    expect(kernel.killed).toEqual([11, 12]);
    expect(await tree.list()).toEqual([]);
    expect(await failureOf(group.stats())).toBeInstanceOf(CgroupGoneError);
    kernel.mkdir("/cg/cpu/ns/vm2");
    kernel.files.set("/cg/cpu/ns/vm2/cgroup.procs", "0\n");
    expect(await tree.open("vm2").pids()).toEqual([]);
  });

  test("of a dead daemon are found and removed in every tree", async () => {
    const elsewhere = ["/cg/memory/session-7/ns/old", "/cg/pids/ns/old", "/cg/memory/session-7/other/ns2/x"];
    const kernel = new FakeKernel([...V1_TREES, ...elsewhere], v1Files);
    kernel.files.set("/cg/memory/session-7/ns/old/cgroup.procs", "77\n");
    const tree = await openV1(kernel);
    expect(await tree.list()).toEqual(["old"]);
    await tree.open("old")[Symbol.asyncDispose]();
    expect(kernel.killed).toEqual([77]);
    expect(await tree.list()).toEqual([]);
    await tree[Symbol.asyncDispose]();
    expect([...kernel.groups].filter((group) => group.endsWith("/ns"))).toEqual([]);
    expect(kernel.groups.has("/cg/memory/session-7/other/ns2/x")).toBe(true);
  });

  test("are removed when a limit is refused", async () => {
    const kernel = new FakeKernel(V1_TREES, v1Files);
    const tree = await openV1(kernel);
    kernel.refuse = "pids.max";
    expect(await throwing(tree.create("vm1", LIMITS))).toThrow("cannot be made");
    expect(await tree.list()).toEqual([]);
  });

  test("are not created twice, and their names cannot be paths", async () => {
    const tree = await openV1(new FakeKernel(V1_TREES, v1Files));
    await tree.create("vm1", {});
    expect(await throwing(tree.create("vm1", {}))).toThrow("exists");
    for (const name of ["..", "a/b", "", ".x", "a\n"]) expect(() => tree.open(name)).toThrow("not a name");
  });
});

test("are not searched for in other trees for a missing file, unless the group itself is gone", () => {
  const kernel = new FakeKernel(["/cg/cpu/a", "/cg/cpu/b", "/cg/memory/b"], v1Files);
  const tried: string[] = [];
  const write = kernel.write.bind(kernel);
  kernel.write = (path, text) => {
    tried.push(path);
    return write(path, text);
  };
  const files = skippingMissing(kernel);
  expect(files.write("/cg/cpu/gone/cpu.shares", "2")).toBe(false);
  expect(files.write("/cg/cpu/a/memory.max", "2")).toBe(false);
  expect(files.write("/cg/cpu/b/memory.max", "2")).toBe(false);
  expect(files.write("/cg/cpu/b/cpu.shares", "2")).toBe(true);
  expect(files.write("/cg/memory/b/memory.limit_in_bytes", "2")).toBe(true);
  expect(tried).not.toContain("/cg/cpu/b/memory.max");
});

describe("groups on v2", () => {
  const service = "/cg/system.slice/coppice.service";

  test("get their controllers when the service moves into a subgroup", async () => {
    const kernel = new FakeKernel([service], v2Files);
    const tree = await openV2(kernel);
    expect([tree.version, tree.missing]).toEqual(["v2", []]);
    expect(kernel.read(`${service}/daemon/cgroup.procs`)).toBe("42");
    expect(kernel.read(`${service}/cgroup.subtree_control`)).toBe("+memory +cpu +pids");
    expect(kernel.read(`${service}/ns/cgroup.subtree_control`)).toBe("+memory +cpu +pids");
    expect(kernel.read(`${service}/ns/cpu.weight`)).toBe("30");
    expect(kernel.read(`${service}/daemon/cpu.weight`)).toBe("100");
    const group = await tree.create("vm1", LIMITS);
    expect(kernel.read(`${service}/ns/vm1/memory.max`)).toBe("1000");
    expect(kernel.read(`${service}/ns/vm1/memory.swap.max`)).toBe("0");
    expect(kernel.read(`${service}/ns/vm1/cpu.weight`)).toBe("50");
    group.setCpuWeight(5);
    expect(kernel.read(`${service}/ns/vm1/cpu.weight`)).toBe("5");
    expect(kernel.read(`${service}/ns/vm1/pids.max`)).toBe("7");
    expect(await group.stats()).toEqual({
      cpuTimeMs: 1235,
      memoryBytes: 100,
      memoryPeakBytes: 200,
      cacheBytes: 30,
      pids: 2,
    });
  });

  test("are reused when the same process opens them twice", async () => {
    const kernel = new FakeKernel([service], v2Files);
    await openV2(kernel);
    const tree = await openV2(kernel, "0::/system.slice/coppice.service/daemon\n");
    const group = await tree.create("vm1", {});
    expect(group.directories).toEqual([`${service}/ns/vm1`]);
  });

  test("have no controllers in a group with other processes, which causes a warning, and otherwise work", async () => {
    const kernel = new FakeKernel([service], v2Files);
    kernel.refuse = "subtree_control";
    const tree = await openV2(kernel);
    expect(tree.missing).toEqual(["memory", "cpu", "pids"]);
    expect((await tree.create("vm1", {})).directories).toEqual([`${service}/ns/vm1`]);
  });

  test("lack a controller that the parent does not offer", async () => {
    const kernel = new FakeKernel([service], () => ({ ...v2Files(), "cgroup.controllers": "memory\n" }));
    expect((await openV2(kernel)).missing).toEqual(["cpu", "pids"]);
  });
});

describe("groups next to the daemon's service, in the machines' unit,", () => {
  const slice = "/cg/system.slice";
  const unit = `${slice}/coppice-machines.service`;

  test("are made there when it runs, and its own process moves out of their way", async () => {
    const kernel = new FakeKernel([`${slice}/coppice.service`, unit], v2Files);
    kernel.files.set(`${unit}/cgroup.procs`, "7\n");
    const tree = await openV2(kernel);
    expect(kernel.read(`${unit}/hold/cgroup.procs`)).toBe("7");
    expect(kernel.read(`${unit}/cgroup.subtree_control`)).toBe("+memory +cpu +pids");
    expect(kernel.groups.has(`${slice}/coppice.service/ns`)).toBe(false);
    expect((await tree.create("vm1", LIMITS)).directories).toEqual([`${unit}/ns/vm1`]);
    // Later the process is in the subgroup already.
    kernel.files.set(`${unit}/cgroup.procs`, "");
    expect(await (await openV2(kernel)).list()).toEqual(["vm1"]);
  });

  test("have their controllers again after the unit was restarted", async () => {
    const kernel = new FakeKernel([`${slice}/coppice.service`, unit], v2Files);
    kernel.files.set(`${unit}/cgroup.procs`, "7\n");
    const tree = await openV2(kernel);
    for (const group of [`${unit}/ns`, `${unit}/hold`, unit]) {
      kernel.files.set(`${group}/cgroup.procs`, "");
      expect(kernel.rmdir(group)).toBe(true);
    }
    kernel.mkdir(unit);
    kernel.files.set(`${unit}/cgroup.procs`, "8\n");
    await tree.create("vm1", LIMITS);
    expect(kernel.read(`${unit}/hold/cgroup.procs`)).toBe("8");
    for (const group of [unit, `${unit}/ns`]) {
      expect(kernel.read(`${group}/cgroup.subtree_control`)).toBe("+memory +cpu +pids");
    }
    expect(kernel.read(`${unit}/ns/cpu.weight`)).toBe("30");
  });

  test("can be ended by a process elsewhere, which makes none", async () => {
    const elsewhere = "/cg/user.slice";
    const kernel = new FakeKernel([elsewhere, unit, `${unit}/ns`, `${unit}/ns/vm1`], v2Files);
    kernel.files.set(`${unit}/ns/vm1/cgroup.procs`, "7\n");
    const options = { files: kernel, mountinfo: V2_MOUNTS, selfCgroup: "0::/user.slice\n", opensOnly: true };
    const killProcess = (pid: number) => kernel.kill(pid);
    const tree = await openCgroupTree({ namespace: "ns", killProcess, ...options });
    expect(await tree.list()).toEqual(["vm1"]);
    await tree.open("vm1")[Symbol.asyncDispose]();
    await tree[Symbol.asyncDispose]();
    expect([...kernel.groups].filter((group) => group.includes("ns") || group.includes("daemon"))).toEqual([]);
  });

  test("are made below the service when it does not run", async () => {
    const kernel = new FakeKernel([`${slice}/coppice.service`, unit], v2Files);
    const tree = await openV2(kernel);
    expect((await tree.create("vm1", {})).directories).toEqual([`${slice}/coppice.service/ns/vm1`]);
  });

  test("are made there on v1, in each tree that has it", async () => {
    const kernel = new FakeKernel([...V1_TREES, "/cg/memory/service/coppice-machines.service"], v1Files);
    kernel.files.set("/cg/memory/service/coppice-machines.service/cgroup.procs", "7\n");
    const { directories } = await (await openV1(kernel)).create("vm1", {});
    expect(directories).toContain("/cg/memory/service/coppice-machines.service/ns/vm1");
    expect(directories).toContain("/cg/cpu/ns/vm1");
  });

  test("are found in either place, with their figures and limits", async () => {
    const kernel = new FakeKernel([`${slice}/coppice.service/ns/below`, unit], v2Files);
    kernel.files.set(`${unit}/cgroup.procs`, "7\n");
    kernel.mkdir(`${unit}/ns/inside`);
    const tree = await openV2(kernel);
    expect(await tree.list()).toEqual(["below", "inside"]);
    const group = tree.open("below");
    expect(group.directories).toEqual([`${slice}/coppice.service/ns/below`]);
    expect((await group.stats()).pids).toBe(2);
    group.setCpuWeight(9);
    expect(kernel.read(`${slice}/coppice.service/ns/below/cpu.weight`)).toBe("9");
    await group[Symbol.asyncDispose]();
    expect(await tree.list()).toEqual(["inside"]);
  });
});

describe("figures", () => {
  test("are parsed only from the kernel's formats", () => {
    expect(parseNumber("12\n")).toBe(12);
    for (const text of [null, "", "max\n", "-1", "1 2"]) expect(parseNumber(text)).toBeNull();
    expect(parseKeyed("usage_usec 5\nuser_usec 3\n", "user_usec")).toBe(3);
    expect(parseKeyed("usage_usec 5\n", "usage")).toBeNull();
  });

  test("use the current memory as the peak without memory.peak", () => {
    const files: Record<string, string> = { "memory.current": "5\n", "cpu.stat": "usage_usec 2000\n" };
    expect(readStats((file) => files[file] ?? null)).toEqual({
      cpuTimeMs: 2,
      memoryBytes: 5,
      memoryPeakBytes: 5,
      cacheBytes: 0,
      pids: 0,
    });
  });

  test("are sampled between two readings, until the group is removed", async () => {
    let reading = 0;
    const source = {
      async stats() {
        reading += 1;
        if (reading === 4) throw new CgroupGoneError("gone");
        return { cpuTimeMs: reading * 10, memoryBytes: 1, memoryPeakBytes: 2, cacheBytes: 0, pids: 1 };
      },
    };
    const seen = await Array.fromAsync(samples(source, 20, new AbortController().signal));
    expect(seen.map(({ cpuTimeMs }) => cpuTimeMs)).toEqual([10, 20, 30]);
    expect(seen[0]?.cpuPercent).toBe(0);
    expect(seen[1]?.cpuPercent).toBeGreaterThan(5);
    expect(seen[1]?.cpuPercent).toBeLessThan(60);
  });

  test("are no longer sampled after the reader has left", async () => {
    const controller = new AbortController();
    const source = {
      stats: async () => ({ cpuTimeMs: 1, memoryBytes: 1, memoryPeakBytes: 1, cacheBytes: 0, pids: 1 }),
    };
    let count = 0;
    for await (const _ of samples(source, 60_000, controller.signal)) {
      count += 1;
      setImmediate(() => controller.abort());
    }
    expect(count).toBe(1);
  });
});
