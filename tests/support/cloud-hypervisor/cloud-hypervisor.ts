import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import {
  chmodSync,
  closeSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { chmod, mkdir, mkdtemp, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import { type CgroupTree, openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import type { Log } from "../../../src/log.ts";
import { listenUnix } from "../../../src/system/unix-sockets.ts";
import type { AgentExecSpec } from "../../../src/vm/agent/agent.ts";
import type { VmAssets } from "../../../src/vm/assets.ts";
import { openCloudHypervisor } from "../../../src/vm/cloud-hypervisor/cloud-hypervisor.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { HeldRoots } from "../../../src/vm/jail/vmm-roots.ts";
import type { Disk, Machine, MachineShape, Vmm } from "../../../src/vm/vmm.ts";
import type { Control, TranscriptLine } from "./control.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const AGENT = join(ROOT, "build/agent/agent-native");
export const UID_BASE = 780_000;
const AGENT_POLL_MS = 5;
const BUILD_TIMEOUT_MS = 120_000;
const DISK_BYTES_MAX = 1_073_741_824;
export const SHAPE: MachineShape = { vcpus: 1, memoryBytes: 134_217_728 };
/** A command that counts in lines. */
export const COUNTING: AgentExecSpec = {
  argv: ["/bin/sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"],
  env: { PATH: "/usr/bin:/bin" },
  cwd: "/",
  hostname: "guest",
  timeoutMs: 600_000,
};
/** The program's own description of its API, where it is available. */
export const DESCRIPTION_PATH = process.env["COPPICE_TEST_CH_OPENAPI"];

/** The real driver and launcher with stand-ins for the program, and native agents for the guests. */
export class StandInHost implements AsyncDisposable {
  readonly directory: string;
  readonly vmsDirectory: string;
  readonly namespace: string;
  readonly cgroups: CgroupTree;
  readonly uids: UidPool;
  readonly heldRoots: HeldRoots;
  readonly vmm: Vmm;
  readonly warnings: string[];
  readonly guests: GuestAgents;
  readonly #owned: AsyncDisposableStack;
  readonly #root: string;

  private constructor(
    parts: Omit<StandInHost, "control" | "transcript" | typeof Symbol.asyncDispose> & { owned: AsyncDisposableStack },
  ) {
    this.directory = parts.directory;
    this.vmsDirectory = parts.vmsDirectory;
    this.namespace = parts.namespace;
    this.cgroups = parts.cgroups;
    this.uids = parts.uids;
    this.heldRoots = parts.heldRoots;
    this.guests = parts.guests;
    this.vmm = parts.vmm;
    this.warnings = parts.warnings;
    this.#owned = parts.owned;
    const roots = join(this.directory, "run");
    this.#root = join(roots, readdirSync(roots)[0] ?? "");
    if (DESCRIPTION_PATH !== undefined) writeFileSync(join(this.#root, "openapi.yaml"), readFileSync(DESCRIPTION_PATH));
  }

  static async open(version = "53.0"): Promise<StandInHost> {
    await using stack = new AsyncDisposableStack();
    const directory = await mkdtemp("/tmp/coppice-ch-");
    stack.defer(() => rm(directory, { recursive: true, force: true }));
    await chmod(directory, 0o711);
    const vmsDirectory = join(directory, "vms");
    await mkdir(vmsDirectory, { mode: 0o711 });
    const program = join(directory, "cloud-hypervisor");
    buildStandIn(program, version);
    buildAgent();
    for (const name of ["kernel", "initramfs"]) writeFileSync(join(directory, name), name, { mode: 0o444 });
    const assets = standInAssets(directory);
    const [uids, heldRoots] = [new UidPool(UID_BASE, 100), new HeldRoots()];
    const namespace = `coppice-ch-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;
    const cgroups = stack.use(await openCgroupTree({ namespace }));
    const warnings: string[] = [];
    const vmm = await openCloudHypervisor({
      assets,
      vmsDirectory,
      runtimeDirectory: join(directory, "run"),
      cgroups,
      diskBytesMax: DISK_BYTES_MAX,
      uids,
      heldRoots,
      log: collectingLog(warnings),
      program,
    });
    const guests = stack.use(new GuestAgents(vmsDirectory));
    const parts = { directory, vmsDirectory, namespace, cgroups, uids, heldRoots, vmm, warnings, guests };
    return new StandInHost({ ...parts, owned: stack.move() });
  }

  /** Sets the behaviour of stand-ins that start later. */
  control(control: Control): void {
    writeFileSync(join(this.#root, "control.json"), JSON.stringify(control));
  }

  /** The transcript of a machine's stand-in; read it before the machine is disposed of. */
  transcript(machine: Machine): TranscriptLine[] {
    const text = readFileSync(join(machine.directory, "run/transcript"), "utf8");
    return text.split("\n").flatMap((line) => (line === "" ? [] : [JSON.parse(line) as TranscriptLine]));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#owned.disposeAsync();
  }
}

/** The launcher, and files in place of what guests boot. */
export function standInAssets(directory: string): VmAssets {
  const launcher = join(ROOT, "build/assets/launch");
  if (!existsSync(launcher)) throw new Error(`${launcher} is missing: run make assets first`);
  const [kernel, initramfs] = [join(directory, "kernel"), join(directory, "initramfs")];
  return { kernel, initramfs, launcher, memory: "", memoryCopier: "", hash: "" };
}

/** Plain files as disks of a machine: layers, and a scratch last. */
export function blankDisks(host: Pick<StandInHost, "directory">, machine: Machine, layers: number): Disk[] {
  const path = (name: string): string => {
    const file = join(name === "S" ? machine.directory : host.directory, name);
    writeFileSync(file, "");
    truncateSync(file, 1_048_576);
    return file;
  };
  const serials = Array.from({ length: layers }, (_, index) => `L${String(index).padStart(2, "0")}`);
  const own = serials.map((serial) => ({ serial, path: path(serial), readOnly: true }));
  return [...own, { serial: "S", path: path("S"), readOnly: false }];
}

export function callsOf(transcript: readonly TranscriptLine[]): string[] {
  return transcript.flatMap(({ call }) => call ?? []);
}

export function violationsOf(transcript: readonly TranscriptLine[]): string[] {
  return transcript.flatMap(({ violation }) => violation ?? []);
}

function collectingLog(warnings: string[]): Log {
  const ignore = () => undefined;
  const log: Log = {
    debug: ignore,
    info: ignore,
    warn: (text) => void warnings.push(text),
    error: ignore,
    child: () => log,
  };
  return log;
}

function buildStandIn(program: string, version: string): void {
  const source = join(ROOT, "tests/support/cloud-hypervisor/stand-in.ts");
  const define = `STAND_IN_VERSION=${JSON.stringify(version)}`;
  must(["bun", "build", "--compile", "--define", define, source, "--outfile", program], ROOT);
}

function buildAgent(): void {
  must(["make", "-s", "-C", "vm-assets/agent", "native"], ROOT);
}

function must([program = "", ...args]: readonly string[], cwd: string): void {
  const { status, stderr } = spawnSync(program === "bun" ? process.execPath : program, args, {
    cwd,
    timeout: BUILD_TIMEOUT_MS,
    stdio: ["ignore", "ignore", "pipe"],
  });
  if (status !== 0) throw new Error(`${program} ${args[0]} failed: ${stderr}`);
}

/** Gives every machine a guest: the agent's native build, which listens at the stand-in's vsock device. */
class GuestAgents implements AsyncDisposable {
  readonly #vmsDirectory: string;
  readonly #agents = new Map<string, ChildProcess>();
  readonly #timer: Timer;
  /** name of the machine whose guest the next new machine gets */
  #continued: string | null = null;

  constructor(vmsDirectory: string) {
    this.#vmsDirectory = vmsDirectory;
    this.#timer = setInterval(() => this.#look(), AGENT_POLL_MS);
  }

  /** Lets the guest of a machine continue in the next new machine, as a copy of its memory would. */
  continueIn(machine: Machine): void {
    this.#continued = machine.id;
  }

  #look(): void {
    const present = readdirSync(this.#vmsDirectory);
    for (const name of present) {
      // A template is a directory next to the machines', without sockets.
      if (!this.#agents.has(name) && existsSync(join(this.#vmsDirectory, name, "vm/run"))) this.#start(name);
    }
    for (const [name, agent] of this.#agents) {
      if (present.includes(name) || this.#continued === name) continue;
      this.#agents.delete(name);
      if (![...this.#agents.values()].includes(agent)) agent.kill("SIGKILL");
    }
  }

  #start(name: string): void {
    const directory = join(this.#vmsDirectory, name, "vm");
    const path = join(directory, "agent.sock");
    const continued = this.#agents.get(this.#continued ?? "");
    if (continued !== undefined) {
      linkSync(join(this.#vmsDirectory, this.#continued ?? "", "vm/agent.sock"), path);
      this.#agents.set(name, continued);
      this.#continued = null;
      return;
    }
    const fd = listenUnix(path);
    chmodSync(path, 0o666);
    const disks = join(directory, "guest");
    for (const each of ["l/00/upper", "s/upper", "r"]) mkdirSync(join(disks, each), { recursive: true });
    const agent = spawn(AGENT, [`listen:3`, disks], {
      stdio: ["ignore", "ignore", "ignore", fd],
      env: { PATH: "/usr/bin:/bin", ASAN_OPTIONS: "detect_leaks=0" },
    });
    closeSync(fd);
    this.#agents.set(name, agent);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    for (const agent of this.#agents.values()) agent.kill("SIGKILL");
  }
}
