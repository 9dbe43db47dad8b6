import { accessSync, constants, existsSync } from "node:fs";
import { shownDuration, shownSize } from "../../domain/text/shown.ts";
import { wayName } from "../../vm/choice.ts";
import type { IdleCost } from "../machines/idle-cost.ts";
import type { Finding, Verdict } from "./finding.ts";

/** The stored verdicts of this boot of the host: their keys end in its boot id. */
export function rememberedVerdicts(text: string, boot: string): Verdict[] {
  let memos: unknown;
  try {
    memos = JSON.parse(text);
  } catch (error) {
    // SyntaxError: the file is damaged; the appliance rewrites it at its next start.
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
export function kvmVerdict(verdicts: readonly Verdict[]): Verdict | undefined {
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

export function failedTrial(obstacle: string): Finding {
  const meaning = "a VM cannot be tried before this is fixed";
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

export function kvmFinding(tried: Verdict | undefined): Finding {
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

export function isolationFinding(emulation: "never" | "allow", kvm: boolean): Finding {
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
