import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { scratchDirectory } from "../../src/system/scratch.ts";
import { type Build, debianDisk, type Kept, previousBuild, writeArchives } from "../support/appliance/debian-disk.ts";
import { DebianVm } from "../support/appliance/debian-vm.ts";
import { pause, until } from "../support/waiting.ts";

const PROGRAM = resolve(process.env["COPPICE_TEST_EXECUTABLE"] ?? "dist/coppice");
const PREPARE_MS_MAX = 2_400_000;
/** Time limit of a step: everything in the machine is emulated, and its own virtual machines are emulated twice. */
const STEP_MS_MAX = 1_200_000;
const READY_MS_MAX = 1_000_000;
const GROUP = "/sys/fs/cgroup/system.slice/coppice-machines.service";
const URL = "http://127.0.0.1:8642";
setDefaultTimeout(STEP_MS_MAX);

let vm: DebianVm;
let previous: Build;
let kept: Kept;

beforeAll(async () => {
  const disk = await debianDisk();
  previous = await previousBuild();
  await using scratch = await scratchDirectory(tmpdir(), "coppice-archives-");
  const [image, data] = [join(scratch.path, "image.tar"), join(scratch.path, "data.tar")];
  kept = await writeArchives(previous, { image, data });
  const files = { coppice: PROGRAM, previous: previous.path, "image.tar": image, "data.tar": data };
  vm = await DebianVm.boot(disk, files);
}, PREPARE_MS_MAX);

afterAll(async () => {
  await vm?.[Symbol.asyncDispose]();
}, 60_000);

const file = (path: string) => vm.output(`cat ${path}`);
const words = async (path: string) => (await file(path)).split(/\s+/).filter((word) => word !== "");
const succeeds = async (command: string) => (await vm.run(command)).code === 0;
const revision = async () => /\(([^)]*)\)/.exec(await vm.output("coppice version"))?.[1];
const isActive = async () => (await vm.property("ActiveState")) === "active";
const contentOf = (tag: string) => vm.output(`coppice cat tag:${tag} /root/${tag}`);

/** Waits until instances can run. */
async function ready(): Promise<void> {
  const isReady = async () => {
    // Each of these requests delays the start.
    await pause("before the next look", 5000);
    return await succeeds(`curl -sf -m 60 ${URL}/readyz`);
  };
  await until("instances can run", isReady, READY_MS_MAX).catch(async (error: unknown) => {
    throw new Error(await vm.output("journalctl -u coppice -o cat -n 20"), { cause: error });
  });
}

/** Directory of the control group of the machine in use: clones that wait in the pool have a smaller CPU share. */
async function groupInUse(): Promise<string> {
  let groups = "";
  const isFound = async () => {
    groups = (await vm.run(`grep -lx 50 ${GROUP}/coppice-*/*/cpu.weight`)).stdout.trim();
    return groups !== "";
  };
  await until("a machine is in use", isFound, STEP_MS_MAX);
  return groups.split("\n")[0]?.replace(/\/cpu\.weight$/, "") ?? "";
}

/** Bytes of the host's memory that the running instance uses. */
async function memoryInUse(): Promise<number> {
  const [first] = JSON.parse(await vm.output("coppice ps --json")) as { usage: { memory_bytes: number } | null }[];
  return first?.usage?.memory_bytes ?? 0;
}

describe("on Debian with control groups of version 2 only", () => {
  test("installs the previous build and writes data", async () => {
    expect(await vm.output("stat -fc %T /sys/fs/cgroup")).toBe("cgroup2fs");
    await vm.output("mkdir -p /etc/coppice && printf '[pool]\\nsize = 1\\n' >/etc/coppice/config.toml");
    await vm.output("/media/payload/previous install");
    await vm.output("tar -x -S -C /var/lib/coppice -f /media/payload/data.tar");
    await vm.output(`umask 77 && mkdir -p .config/coppice && echo ${kept.token} >.config/coppice/token`);
    await vm.output("systemctl enable --now coppice");
    expect(await isActive()).toBe(true);
    expect(await revision()).toBe(previous.revision);
    expect(await contentOf("kept")).toBe("precious");
  });

  test("upgrades to this build and keeps data and configuration", async () => {
    // A setting that the previous build may not support.
    await vm.output("printf '[vm]\\nprobe_timeout = \"15m\"\\n' >>/etc/coppice/config.toml");
    const { code, stderr } = await vm.run("/media/payload/coppice install --start");
    expect([code, stderr]).toEqual([0, expect.stringContaining("exists and stays unchanged")]);
    expect(await isActive()).toBe(true);
    expect(await vm.property("StatusText")).toBe(`listening on ${URL}`);
    expect(await revision()).not.toBe(previous.revision);
    // Uses the old token, before any machine can run.
    expect(await contentOf("kept")).toBe("precious");
  });

  test("confines the service by its unit, and has the machines in another", async () => {
    expect(await vm.property("ControlGroup")).toBe("/system.slice/coppice.service");
    expect(await file(`${GROUP}/cgroup.procs`)).toBe("");
    expect(await words(`${GROUP}/cgroup.subtree_control`)).toEqual(expect.arrayContaining(["cpu", "memory", "pids"]));
    const idle = await vm.output("systemctl show coppice-machines --value -p MainPID");
    expect(await words(`${GROUP}/hold/cgroup.procs`)).toEqual([idle]);
    expect(await vm.output("systemd-analyze security coppice --threshold=41 | tail -n 1")).toContain("OK");
  });

  test("restarts a service that was killed or hangs", async () => {
    for (const signal of ["KILL", "STOP"]) {
      const pid = await vm.property("MainPID");
      await vm.output(`kill -${signal} ${pid}`);
      const isAnother = async () => ![pid, "0"].includes(await vm.property("MainPID"));
      await until(`another process serves after SIG${signal}`, isAnother, STEP_MS_MAX);
      await until("it is up", isActive, STEP_MS_MAX);
    }
    expect(await vm.property("NRestarts")).toBe("2");
    expect(await contentOf("kept")).toBe("precious");
  });

  test("runs a command in a machine with limits, and publishes an image", async () => {
    await ready();
    const run = "coppice run --image tag:kept --tag more -- sh -c 'cp /root/kept /root/more; echo done; sleep 60'";
    await vm.output(`(${run} >run.out 2>run.err; echo $? >run.code) >/dev/null 2>&1 &`);
    const group = await groupInUse();
    const limits = ["memory.max", "memory.swap.max", "pids.max"].map((name) => file(`${group}/${name}`));
    // The budget counts 512 MiB of the guest, a 32nd of that, 128 MiB, and 2 MiB for its vCPU.
    expect(await Promise.all(limits)).toEqual([String((512 + 512 / 32 + 128 + 2) * 1024 ** 2), "0", "256"]);
    expect((await words(`${group}/cgroup.procs`)).length).toBeGreaterThan(0);
    await until("its use is reported", async () => (await memoryInUse()) > 10 * 1024 ** 2, STEP_MS_MAX);
    await until("the run has ended", () => succeeds("test -s run.code"), STEP_MS_MAX);
    expect([await file("run.code"), await file("run.out")]).toEqual(["0", "done"]);
    expect(await contentOf("more")).toBe("precious");
    await until("its group is gone", () => succeeds(`test ! -e ${group}`), STEP_MS_MAX);
  });

  test("doctor boots a VM and finds no problem", async () => {
    const { code, stdout } = await vm.run("coppice doctor --json", STEP_MS_MAX);
    const { healthy, findings } = JSON.parse(stdout) as { healthy: boolean; findings: Record<string, string>[] };
    expect(findings.filter(({ state }) => state === "problem")).toEqual([]);
    expect([code, healthy]).toEqual([0, true]);
    const finding = (name: string) => findings.find((each) => each["name"] === name);
    expect(finding("cgroups")).toMatchObject({ state: "ok", summary: "version 2" });
    expect(finding("appliance")).toMatchObject({ state: "ok", summary: `running at ${URL}` });
    expect(finding("kvm")).toMatchObject({ state: "ok" });
  });

  test("starts after a reboot, with all its data", async () => {
    await vm.reboot();
    await until("it is up", isActive, STEP_MS_MAX);
    expect(await vm.property("NRestarts")).toBe("0");
    expect(await contentOf("more")).toBe("precious");
    await ready();
    await vm.output("coppice image load /media/payload/image.tar --tag loaded --timeout 900");
    expect(await vm.output("coppice run --image tag:loaded --disposable -- id -u")).toBe("0");
  });

  test("an uninstallation leaves the data and no process", async () => {
    await vm.output("coppice uninstall");
    expect(await succeeds("systemctl cat coppice")).toBe(false);
    expect(await succeeds("command -v coppice")).toBe(false);
    expect(await succeeds("pgrep -x qemu-system-x86")).toBe(false);
    expect(await succeeds(`test -e ${GROUP}`)).toBe(false);
    expect(await vm.output("ls /var/lib/coppice")).toContain("coppice.db");
    expect(await file("/etc/coppice/config.toml")).toContain("probe_timeout");
  });
});
