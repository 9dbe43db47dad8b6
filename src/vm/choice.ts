import type { Acceleration, VmmName } from "./vmm.ts";

/** The ways to run machines, best first. The daemon uses the first that works. */
export const PREFERENCE: readonly { readonly vmm: VmmName; readonly acceleration: Acceleration }[] = [
  { vmm: "cloud-hypervisor", acceleration: "kvm" },
  { vmm: "qemu", acceleration: "kvm" },
  { vmm: "qemu", acceleration: "tcg" },
];

/** The state of one way to run machines on this host. */
export interface CandidateReport {
  readonly vmm: VmmName;
  readonly acceleration: Acceleration;
  /** null: not tried */
  readonly ok: boolean | null;
  /** why it does not work; empty when it works */
  readonly reason: string;
  /** duration of the trial in `milliseconds`; null when there was none */
  readonly durationMs: number | null;
}

export interface Choice {
  /** null: no way has worked yet */
  readonly chosen: CandidateReport | null;
  /** one sentence for each way, in the order of preference */
  readonly reasons: readonly string[];
}

const NAMES: Record<VmmName, string> = { "cloud-hypervisor": "Cloud Hypervisor", qemu: "QEMU" };

/** The name of a way, for messages. */
export function wayName({ vmm, acceleration }: { vmm: VmmName; acceleration: Acceleration }): string {
  return acceleration === "kvm" ? `${NAMES[vmm]} with KVM` : `${NAMES[vmm]} with emulation`;
}

/** Explains which way this host uses, and why it does not use a better one. */
export function explainChoice(reports: readonly CandidateReport[]): Choice {
  const ways = PREFERENCE.map(({ vmm, acceleration }) => {
    const way = reports.find((report) => report.vmm === vmm && report.acceleration === acceleration);
    return way ?? { vmm, acceleration, ok: null, reason: "", durationMs: null };
  });
  const chosen = ways.find(({ ok }) => ok === true) ?? null;
  const decided = chosen === null ? ways.length : ways.indexOf(chosen);
  const reasons = ways.map((way, index) => {
    if (way === chosen) return `${wayName(way)} is used: the best that works here${trial(way)}`;
    if (way.ok === true) return `${wayName(way)} works, but a better one does`;
    if (way.ok === null) return `${wayName(way)} was not tried${index > decided ? ", because a better one works" : ""}`;
    return `${wayName(way)} does not work: ${way.reason}`;
  });
  return { chosen, reasons };
}

function trial({ durationMs }: CandidateReport): string {
  return durationMs === null ? "" : ` (booted, saved, cloned and given a disk in ${durationMs} ms)`;
}
