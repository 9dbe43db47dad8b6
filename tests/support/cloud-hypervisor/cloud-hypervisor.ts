import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { chmodSync, closeSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { chmod, mkdir, mkdtemp, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import { type CgroupTree, openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import type { Log } from "../../../src/log.ts";
import { listenUnix } from "../../../src/system/unix-sockets.ts";
import { openCloudHypervisor } from "../../../src/vm/cloud-hypervisor/cloud-hypervisor.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import type { Machine, MachineShape, Vmm } from "../../../src/vm/vmm.ts";
import type { Control, TranscriptLine } from "./control.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const AGENT = join(ROOT, "build/agent/agent-native");
const UID_BASE = 780_000;
const AGENT_POLL_MS = 5;
const BUILD_TIMEOUT_MS = 120_000;
const DISK_BYTES_MAX = 1_073_741_824;
export const SHAPE: MachineShape = { vcpus: 1, memoryBytes: 134_217_728 };
/** The program's own description of its API, where it is available. */
export const DESCRIPTION_PATH = process.env["COPPICE_TEST_CH_OPENAPI"];

/** The real driver and launcher with stand-ins for the program, and native agents for the guests. */
export class StandInHost implements AsyncDisposable {
  readonly directory: string;
  readonly vmsDirectory: string;
  readonly cgroups: CgroupTree;
  readonly vmm: Vmm;
  readonly warnings: string[];
  readonly #owned: AsyncDisposableStack;
  readonly #root: string;

  private constructor(
    parts: Omit<StandInHost, "control" | "transcript" | typeof Symbol.asyncDispose> & { owned: AsyncDisposableStack },
  ) {
    this.directory = parts.directory;
    this.vmsDirectory = parts.vmsDirectory;
    this.cgroups = parts.cgroups;
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
    const launcher = join(ROOT, "build/assets/launch");
    if (!existsSync(launcher)) throw new Error(`${launcher} is missing: run make assets first`);
    const [kernel, initramfs] = [join(directory, "kernel"), join(directory, "initramfs")];
    const assets = { kernel, initramfs, launcher, memory: "", memoryCopier: "", hash: "" };
    const namespace = `coppice-ch-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;
    const cgroups = stack.use(await openCgroupTree({ namespace }));
    const warnings: string[] = [];
    const vmm = await openCloudHypervisor({
      assets,
      vmsDirectory,
      runtimeDirectory: join(directory, "run"),
      cgroups,
      diskBytesMax: DISK_BYTES_MAX,
      uids: new UidPool(UID_BASE, 100),
      log: collectingLog(warnings),
      program,
    });
    stack.use(new GuestAgents(vmsDirectory));
    return new StandInHost({ directory, vmsDirectory, cgroups, vmm, warnings, owned: stack.move() });
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

  constructor(vmsDirectory: string) {
    this.#vmsDirectory = vmsDirectory;
    this.#timer = setInterval(() => this.#look(), AGENT_POLL_MS);
  }

  #look(): void {
    const present = readdirSync(this.#vmsDirectory);
    for (const name of present) {
      // A template is a directory next to the machines', without sockets.
      if (!this.#agents.has(name) && existsSync(join(this.#vmsDirectory, name, "vm/run"))) this.#start(name);
    }
    for (const [name, agent] of this.#agents) if (!present.includes(name)) agent.kill("SIGKILL");
  }

  #start(name: string): void {
    const directory = join(this.#vmsDirectory, name, "vm");
    const path = join(directory, "agent.sock");
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
