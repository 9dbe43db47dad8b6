import { accessSync, constants, existsSync, readFileSync, statfsSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Readiness } from "../../domain/readiness.ts";
import { shownDuration, shownSize } from "../../domain/text/shown.ts";
import { CommandError, run } from "../../system/exec.ts";
import { resolveAssets } from "../../vm/assets.ts";
import { wayName } from "../../vm/choice.ts";
import { PROBE_MEMO_NAME } from "../../vm/probe.ts";
import { IDLE_COST_NAME, type IdleCost } from "../machines/idle-cost.ts";
import type { Finding, Verdict } from "./finding.ts";
import { hostFacts, machineFindings } from "./machines.ts";
import { type Outside, outsideFindings } from "./outside.ts";
import { type Program, QEMU, TOOLS } from "./programs.ts";

/** Time in which a program must print its version, also on a busy host; `milliseconds`. */
const VERSION_TIMEOUT_MS = 60_000;
/** Free space below this is a note, in `bytes`. */
const FREE_BYTES_LOW = 5 * 1024 ** 3;

/** The verdicts of a trial, or the obstacle that prevented it. */
export type Trial = { readonly verdicts: readonly Verdict[] } | { readonly obstacle: string };

/** The settings that the checks depend on. */
export interface HealthSettings {
  readonly dataDirectory: string;
  readonly emulation: "never" | "allow";
  readonly outside: Outside;
}

/**
 * Checks all prerequisites of the appliance on this machine, and changes nothing. It takes as long as the slowest program
 * and name server, at most about a minute.
 * @param trial null: the findings use the verdicts that an appliance here has stored
 */
export async function hostFindings(settings: HealthSettings, trial: Trial | null): Promise<Finding[]> {
  const { dataDirectory, emulation, outside } = settings;
  const remembered = rememberedVerdicts(readText(join(dataDirectory, PROBE_MEMO_NAME)) ?? "[]", bootId());
  const verdicts = trial !== null && "verdicts" in trial ? trial.verdicts : remembered;
  const kvm = kvmFinding(kvmVerdict(verdicts));
  return [
    processorFinding(readText("/proc/cpuinfo") ?? "", process.arch),
    rootFinding(process.getuid?.() ?? -1),
    kvm,
    { ...(await programFinding(QEMU)), name: "qemu" },
    ...machineFindings(await hostFacts(), verdicts),
    isolationFinding(emulation, kvm.state === "ok" || (process.getuid?.() !== 0 && existsSync("/dev/kvm"))),
    trial !== null && "obstacle" in trial ? failedTrial(trial.obstacle) : probeFinding(verdicts, trial !== null),
    ...poolFinding(readText(join(dataDirectory, IDLE_COST_NAME))),
    ...(await Promise.all(TOOLS.map(programFinding))),
    ...(await outsideFindings(outside)),
    cgroupFinding(readText("/proc/self/mountinfo") ?? ""),
    dataFinding(dataDirectory),
    await assetsFinding(),
  ];
}

/** Whether nothing stands in the way of running sandboxes. */
export function isHealthy(findings: readonly Finding[]): boolean {
  return findings.every(({ state }) => state !== "problem");
}

export function processorFinding(cpuinfo: string, architecture: string): Finding {
  const base = { name: "processor", meaning: "the executable needs x86_64 with AVX2", fix: null };
  if (architecture !== "x64") return { ...base, state: "problem", summary: `architecture ${architecture}` };
  const flags = /^flags\s*:(.*)$/m.exec(cpuinfo)?.[1]?.split(/\s+/) ?? [];
  const avx2 = flags.includes("avx2");
  return { ...base, state: avx2 ? "ok" : "problem", summary: avx2 ? "x86_64 with AVX2" : "x86_64 without AVX2" };
}

export function rootFinding(uid: number): Finding {
  return {
    name: "root",
    state: uid === 0 ? "ok" : "problem",
    summary: uid === 0 ? "running as root" : `running as uid ${uid}`,
    meaning: "jailing a VM takes namespaces and a change of user id; the VMs themselves run without any privilege",
    fix: uid === 0 ? null : "sudo coppice doctor",
  };
}

/** The stored verdicts of this boot of the host: their keys end in its boot id. */
export function rememberedVerdicts(text: string, boot: string): Verdict[] {
  let memos: unknown;
  try {
    memos = JSON.parse(text);
  } catch (error) {
    // SyntaxError: the file is damaged; the appliance writes it anew at its next start.
    if (!(error instanceof SyntaxError)) throw error;
  }
  if (!Array.isArray(memos)) return [];
  const latest = new Map<string, Verdict>();
  for (const memo of memos as Partial<Verdict & { key: string }>[]) {
    const { key, vmm, acceleration, ok, reason, durationMs } = memo ?? {};
    if (!key?.endsWith(`\n${boot}`) || vmm === undefined || acceleration === undefined) continue;
    const verdict = { vmm, acceleration, ok: ok === true, reason: reason ?? "", durationMs: durationMs ?? 0 };
    latest.set(`${vmm} ${acceleration}`, verdict);
  }
  return [...latest.values()];
}

/** The verdict about KVM: one way that works is enough. */
function kvmVerdict(verdicts: readonly Verdict[]): Verdict | undefined {
  const tried = verdicts.filter(({ acceleration }) => acceleration === "kvm");
  return tried.find(({ ok }) => ok) ?? tried.at(-1);
}

/** @param now true: a trial of this command gave the verdicts */
export function probeFinding(verdicts: readonly Verdict[], now: boolean): Finding {
  const base = { name: "probe", meaning: "a VM was booted, saved, cloned and given a disk", fix: null };
  if (verdicts.length === 0) {
    return {
      ...base,
      state: "note",
      summary: "not run since this boot",
      meaning: "the start of the appliance runs it",
    };
  }
  const worked = verdicts.find(({ ok }) => ok);
  if (worked === undefined) {
    const meaning = "no VM could be booted, saved, cloned and given a disk: no sandbox can run";
    const spentMs = verdicts.reduce((sum, { durationMs }) => sum + durationMs, 0);
    const summary = `no way to run a VM works (tried for ${shownDuration(spentMs)})`;
    return { ...base, state: "problem", meaning, summary };
  }
  const when = now ? "" : ", when the appliance was started";
  const done = `${wayName(worked)} works: booted, saved, cloned and given a disk in ${shownDuration(worked.durationMs)}`;
  return { ...base, state: "ok", summary: `${done}${when}` };
}

function failedTrial(obstacle: string): Finding {
  const meaning = "a VM could not be tried: this comes first";
  return { name: "probe", state: "problem", summary: obstacle, meaning, fix: null };
}

/** The cost of machines that wait in the pool; no finding before the appliance has measured it. */
export function poolFinding(text: string | null): Finding[] {
  if (text === null || !text.startsWith("{")) return [];
  const { count, memoryBytes, cpuPercent } = JSON.parse(text) as IdleCost;
  const machines = `${count} ${count === 1 ? "machine waits" : "machines wait"}`;
  const summary = `${machines}: ${shownSize(memoryBytes)} and ${cpuPercent} % of a CPU each, when last measured`;
  return [{ name: "idle pool", state: "ok", summary, meaning: "pool.size sets how many VMs wait", fix: null }];
}

function bootId(): string {
  return (readText("/proc/sys/kernel/random/boot_id") ?? "").trim();
}

function kvmFinding(tried: Verdict | undefined): Finding {
  const base = { name: "kvm", meaning: "without KVM, VMs can only be emulated: slow, and no security boundary" };
  if (!existsSync("/dev/kvm")) {
    const fix = "modprobe kvm_intel || modprobe kvm_amd  # and enable virtualisation in the firmware";
    return { ...base, state: "note", summary: "there is no /dev/kvm", fix };
  }
  try {
    accessSync("/dev/kvm", constants.R_OK | constants.W_OK);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return { ...base, state: "note", summary: `/dev/kvm cannot be opened: ${code}`, fix: "sudo coppice doctor" };
  }
  if (tried?.ok === false)
    return { ...base, state: "note", summary: `/dev/kvm does not work: ${tried.reason}`, fix: null };
  const proof = tried?.ok === true ? "a VM ran with it" : "only a VM proves that it works";
  return { ...base, state: "ok", summary: `/dev/kvm is there; ${proof}`, fix: null };
}

export function isolationFinding(emulation: HealthSettings["emulation"], kvm: boolean): Finding {
  const base = { name: "vm.emulation", fix: null };
  const summary = emulation;
  if (kvm) return { ...base, state: "ok", summary, meaning: "used only where KVM turns out not to work" };
  if (summary === "allow") {
    return {
      ...base,
      state: "note",
      summary,
      meaning: "VMs will be emulated: fit for trials, not for strangers' code",
    };
  }
  return {
    ...base,
    state: "problem",
    summary,
    meaning: "no KVM, and emulation is not allowed: no sandbox can run",
    fix: "COPPICE_VM_EMULATION=allow coppice serve  # for trials only",
  };
}

async function programFinding(program: Program): Promise<Finding> {
  const { name, meaning, package: debianPackage = name, argument = "--version" } = program;
  const base = { name, meaning, fix: null };
  try {
    const { stdout, stderr } = await run({ argv: [name, argument], timeoutMs: VERSION_TIMEOUT_MS });
    const text = `${Buffer.from(stdout).toString("utf8")}\n${stderr}`;
    const version = /\bv?(\d+\.\d+[\w.~+-]*)/.exec(text)?.[1];
    return { ...base, state: "ok", summary: version === undefined ? "installed" : `version ${version}` };
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    const summary = error.message.replace(`${name} `, "");
    // A program that is late is installed: installing it again makes no host faster.
    if (error.timedOut) return { ...base, state: "note", summary };
    const fix = `apt-get install --no-install-recommends ${debianPackage}`;
    return { ...base, state: "problem", summary, fix };
  }
}

export function cgroupFinding(mountinfo: string): Finding {
  const types = [...mountinfo.matchAll(/ - (cgroup2?) \S+ (\S+)$/gm)];
  const v1 = types.filter(([, type]) => type === "cgroup").map(([, , options]) => options ?? "");
  const base = { name: "cgroups", fix: null };
  if (v1.some((options) => options.split(",").includes("memory"))) {
    const meaning = "memory limits, figures and ending of each VM work; further limits need version 2";
    return { ...base, state: "note", summary: "version 1, or both", meaning };
  }
  if (types.some(([, type]) => type === "cgroup2")) {
    return { ...base, state: "ok", summary: "version 2", meaning: "limits and figures per VM" };
  }
  return { ...base, state: "problem", summary: "not mounted", meaning: "a VM cannot be limited, measured or ended" };
}

function dataFinding(dataDirectory: string): Finding {
  const base = { name: "data directory", meaning: "layers, files and the database live there", fix: null };
  let existing = dataDirectory;
  while (!existsSync(existing)) existing = dirname(existing);
  try {
    accessSync(existing, constants.W_OK);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const fix = process.getuid?.() === 0 ? null : "sudo coppice doctor";
    return { ...base, state: "problem", summary: `${dataDirectory} is not writable: ${code}`, fix };
  }
  if (mountOptions(readText("/proc/self/mountinfo") ?? "", existing).includes("noexec")) {
    const meaning = "the launcher of VMs is started from there";
    return { ...base, state: "problem", summary: `${dataDirectory} is mounted noexec`, meaning };
  }
  const { bavail, bsize } = statfsSync(existing);
  const free = bavail * bsize;
  const state = free < FREE_BYTES_LOW ? "note" : "ok";
  return { ...base, state, summary: `${dataDirectory}, ${shownSize(free)} free` };
}

/** Options of the mount that holds `path`. */
export function mountOptions(mountinfo: string, path: string): string[] {
  let best = { point: "", options: "" };
  for (const line of mountinfo.split("\n")) {
    const [, , , , point = "", options = ""] = line.split(" ");
    const holds = point !== "" && (path === point || path.startsWith(point === "/" ? "/" : `${point}/`));
    // A later line with the same point lies on top.
    if (holds && point.length >= best.point.length) best = { point, options };
  }
  return best.options.split(",");
}

async function assetsFinding(): Promise<Finding> {
  const base = { name: "guest", meaning: "kernel, initramfs and launcher that VMs are started with" };
  if (Bun.isStandaloneExecutable) return { ...base, state: "ok", summary: "inside the executable", fix: null };
  try {
    const { hash } = await resolveAssets("");
    return { ...base, state: "ok", summary: `built from source, ${hash.slice(0, 12)}`, fix: null };
  } catch (error) {
    return { ...base, state: "problem", summary: (error as Error).message, fix: "make assets" };
  }
}

/** The finding about an appliance that runs. @param where begins its summary */
export function runningFinding(readiness: Pick<Readiness, "ready" | "reason">, where: string): Finding {
  const base = { name: "appliance", fix: null };
  if (readiness.ready) return { ...base, state: "ok", summary: where, meaning: "answers requests" };
  const summary = `${where}, not ready: ${readiness.reason}`;
  return { ...base, state: "problem", summary, meaning: "it answers, but runs no sandbox now; a start takes seconds" };
}

function readText(path: string): string | null {
  return existsSync(path) ? readFileSync(path, "utf8") : null;
}
