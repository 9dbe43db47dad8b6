import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Readiness } from "../../domain/readiness.ts";
import { PROBE_MEMO_NAME } from "../../vm/probe.ts";
import { IDLE_COST_NAME } from "../machines/idle-cost.ts";
import type { Finding, Verdict } from "./finding.ts";
import { cgroupFinding, dataFinding, processorFinding, readText, rootFinding } from "./host.ts";
import { assetsFinding, programFinding } from "./installed.ts";
import { hostFacts, machineFindings } from "./machines.ts";
import { type Outside, outsideFindings } from "./outside.ts";
import { QEMU, TOOLS } from "./programs.ts";
import {
  failedTrial,
  isolationFinding,
  kvmFinding,
  kvmVerdict,
  poolFinding,
  probeFinding,
  rememberedVerdicts,
} from "./trials.ts";

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

function bootId(): string {
  return (readText("/proc/sys/kernel/random/boot_id") ?? "").trim();
}

/** The finding about an appliance that runs. @param where begins its summary */
export function runningFinding(readiness: Pick<Readiness, "ready" | "reason">, where: string): Finding {
  const base = { name: "appliance", fix: null };
  if (readiness.ready) return { ...base, state: "ok", summary: where, meaning: "answers requests" };
  const summary = `${where}, not ready: ${readiness.reason}`;
  return { ...base, state: "problem", summary, meaning: "it answers, but runs no sandbox now; a start takes seconds" };
}
