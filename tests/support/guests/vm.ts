import { existsSync, readdirSync, readFileSync } from "node:fs";
import { chmod, copyFile, mkdir, mkdtemp, rm, symlink } from "node:fs/promises";
import { join, resolve } from "node:path";
import { type CgroupTree, openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { silentLog } from "../../../src/log.ts";
import { buildBaseDisk } from "../../../src/oci/base-disk.ts";
import { buildScratchTemplate, createScratch } from "../../../src/oci/scratch-disk.ts";
import { Agent, type AgentExecSpec, type AgentExit } from "../../../src/vm/agent/agent.ts";
import type { AssetName, VmAssets } from "../../../src/vm/assets.ts";
import { openCloudHypervisor } from "../../../src/vm/cloud-hypervisor/cloud-hypervisor.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { openQemu } from "../../../src/vm/qemu/qemu.ts";
import { buildTemplate, openAgent, syncAgent } from "../../../src/vm/templates.ts";
import type { Acceleration, Disk, Machine, MachineShape, Template, Vmm } from "../../../src/vm/vmm.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const SCRATCH_BYTES = 1_073_741_824;
export const UID_BASE = 790_000;
export const TEST_SHAPE: MachineShape = { vcpus: 1, memoryBytes: 268_435_456 };

/** The assets that `make assets` builds. @throws Error that names the missing file */
export function builtAssets(): VmAssets {
  const directory = join(ROOT, "build/assets");
  const asset = (name: AssetName): string => {
    const path = join(directory, name);
    if (!existsSync(path)) throw new Error(`${path} is missing: run make assets first`);
    return path;
  };
  const [kernel, initramfs] = [asset("vmlinux"), asset("initramfs.cpio")];
  const [launcher, memory, memoryCopier] = [asset("launch"), asset("memory.so"), asset("copy-memory")];
  return { kernel, initramfs, launcher, memory, memoryCopier, hash: "of the tests" };
}

/** A directory, control groups, user ids and QEMU for the machines of one test file. */
export interface VmHost extends AsyncDisposable {
  readonly directory: string;
  readonly vmsDirectory: string;
  readonly namespace: string;
  readonly cgroups: CgroupTree;
  readonly vmm: Vmm;
  /** QEMU, with the given assets in place of the built ones */
  open(acceleration: Acceleration, assets?: Partial<VmAssets>): Promise<Vmm>;
  /** one template for the whole file */
  template(): Promise<Template>;
  /** a clone whose agent is in sync */
  clone(): Promise<TestMachine>;
  /** a clone with a busybox image mounted below a fresh scratch */
  mounted(): Promise<TestMachine>;
  /** disks of such a machine */
  disks(machine: Machine): Promise<Disk[]>;
}

export interface TestMachine extends AsyncDisposable {
  readonly machine: Machine;
  readonly agent: Agent;
}

/**
 * Opens a host on emulation, which works on every machine, or on Cloud Hypervisor where COPPICE_TEST_VMM requests it and the
 * tests are not about QEMU. Disposal checks that no group is left.
 */
export async function openVmHost(about: "machines" | "qemu" = "machines"): Promise<VmHost> {
  const assets = builtAssets();
  await using stack = new AsyncDisposableStack();
  const directory = await mkdtemp("/tmp/coppice-vm-");
  stack.defer(() => rm(directory, { recursive: true, force: true }));
  await chmod(directory, 0o711);
  const vmsDirectory = join(directory, "vms");
  await mkdir(vmsDirectory, { mode: 0o711 });
  const namespace = `coppice-test-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;
  const cgroups = stack.use(await openCgroupTree({ namespace }));
  const uids = new UidPool(UID_BASE, 1000);
  const runtimeDirectory = join(directory, "run");
  const common = { assets, vmsDirectory, runtimeDirectory, cgroups, uids, diskBytesMax: SCRATCH_BYTES, log: silentLog };
  const open = (acceleration: Acceleration, changed: Partial<VmAssets> = {}) =>
    openQemu({ ...common, assets: { ...assets, ...changed }, acceleration });
  const isRequested = process.env["COPPICE_TEST_VMM"] === "cloud-hypervisor" && about === "machines";
  const program = process.env["COPPICE_TEST_CH_PROGRAM"];
  const vmm = isRequested
    ? await openCloudHypervisor({ ...common, ...(program === undefined ? {} : { program }) })
    : await open("tcg");
  let template: Promise<Template> | null = null;
  stack.defer(async () => (await template?.catch(() => null))?.[Symbol.asyncDispose]());
  let images: Promise<{ base: string; scratch: string }> | null = null;
  const host = {
    directory,
    vmsDirectory,
    namespace,
    cgroups,
    vmm,
    open,
    template: () => {
      template ??= buildTemplate(vmm, TEST_SHAPE, { log: silentLog, signal: AbortSignal.timeout(60_000) });
      return template;
    },
    clone: async () => ready(await vmm.clone(await host.template())),
    disks: async (machine: Machine): Promise<Disk[]> => {
      images ??= buildImages(directory);
      const { base, scratch } = await images;
      const own = join(machine.directory, "S");
      await createScratch(scratch, own);
      return [
        { serial: "L00", path: base, readOnly: true },
        { serial: "S", path: own, readOnly: false },
      ];
    },
    mounted: async () => {
      const test = await host.clone();
      await test.machine.attach(await host.disks(test.machine));
      await test.agent.mount({ layers: 1, scratch: true });
      return test;
    },
  };
  const owned = stack.move();
  return { ...host, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

/** Starts the use of a machine's agent. */
export async function ready(machine: Machine): Promise<TestMachine> {
  const agent = openAgent(machine, silentLog);
  await syncAgent(agent);
  return { machine, agent, [Symbol.asyncDispose]: () => machine[Symbol.asyncDispose]() };
}

/** Waits for a cold boot. */
export async function greeted(machine: Machine): Promise<Agent> {
  const agent = Agent.open(machine.channel);
  await agent.hello(AbortSignal.timeout(60_000));
  return agent;
}

async function buildImages(directory: string): Promise<{ base: string; scratch: string }> {
  const staging = join(directory, "staging");
  const bin = join(staging, "upper/bin");
  await mkdir(bin, { recursive: true });
  await copyFile("/bin/busybox", join(bin, "busybox"));
  for (const name of [
    "sh",
    "cat",
    "echo",
    "date",
    "head",
    "sleep",
    "mount",
    "kill",
    "id",
    "yes",
    "wc",
    "ls",
    "mkdir",
  ]) {
    await symlink("busybox", join(bin, name));
  }
  const base = join(directory, "base.disk");
  const { launcher } = builtAssets();
  await buildBaseDisk({ launcher, staging, path: base, timeoutMs: 30_000, signal: new AbortController().signal });
  await chmod(base, 0o444);
  const scratch = join(directory, "scratch.template");
  await buildScratchTemplate(scratch, SCRATCH_BYTES);
  return { base, scratch };
}

export interface CommandResult extends AgentExit {
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs a shell script in a mounted machine, to its end. */
export async function shell(agent: Agent, script: string, spec: Partial<AgentExecSpec> = {}): Promise<CommandResult> {
  const kept = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
  const run = agent.exec(
    {
      argv: ["/bin/sh", "-c", script],
      env: { PATH: "/bin" },
      cwd: "/",
      hostname: "guest",
      timeoutMs: 30_000,
      ...spec,
    },
    (stream, chunk) => void kept[stream].push(chunk.slice()),
  );
  const exit = await run.exit;
  const text = (chunks: Uint8Array[]) => Buffer.concat(chunks).toString("utf8");
  return { ...exit, stdout: text(kept.stdout), stderr: text(kept.stderr) };
}

/** All possible remains of a machine in this process and on this host. */
export function footprint(host: VmHost): { fds: number; children: string[]; directories: string[] } {
  const children = readdirSync("/proc/self/task").flatMap((thread) => readChildren(thread));
  return { fds: readdirSync("/proc/self/fd").length, children, directories: readdirSync(host.vmsDirectory) };
}

function readChildren(thread: string): string[] {
  try {
    return readFileSync(`/proc/self/task/${thread}/children`, "utf8").split(" ").filter(Boolean);
  } catch (error) {
    // ENOENT: the thread ended after the listing.
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
}
