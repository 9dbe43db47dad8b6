import type { Acceleration, VmmName } from "./vmm.ts";

/** The ways to run machines, the best first; the first that works is taken. */
export const PREFERENCE: readonly { readonly vmm: VmmName; readonly acceleration: Acceleration }[] = [
  { vmm: "cloud-hypervisor", acceleration: "kvm" },
  { vmm: "qemu", acceleration: "kvm" },
  { vmm: "qemu", acceleration: "tcg" },
];

/** What is known of one way. */
export interface WayFound {
  readonly vmm: VmmName;
  readonly acceleration: Acceleration;
  /** null: nobody tried */
  readonly ok: boolean | null;
  /** why not; empty when ok */
  readonly reason: string;
  /** how long the trial took, in `milliseconds`; null when there was none */
  readonly durationMs: number | null;
}

export interface Choice {
  /** null: none works, as far as is known */
  readonly chosen: WayFound | null;
  /** one sentence a way, in the order of preference */
  readonly reasons: readonly string[];
}

const NAMES: Record<VmmName, string> = { "cloud-hypervisor": "Cloud Hypervisor", qemu: "QEMU" };

/** A way by the name that a person reads. */
export function wayName({ vmm, acceleration }: { vmm: VmmName; acceleration: Acceleration }): string {
  return acceleration === "kvm" ? `${NAMES[vmm]} with KVM` : `${NAMES[vmm]} with emulation`;
}

/** Explains which way machines run on this host, and why none that is better does. */
export function explainChoice(found: readonly WayFound[]): Choice {
  const known = PREFERENCE.map(({ vmm, acceleration }) => {
    const way = found.find((each) => each.vmm === vmm && each.acceleration === acceleration);
    return way ?? { vmm, acceleration, ok: null, reason: "", durationMs: null };
  });
  const chosen = known.find(({ ok }) => ok === true) ?? null;
  const decided = chosen === null ? known.length : known.indexOf(chosen);
  const reasons = known.map((way, index) => {
    if (way === chosen) return `${wayName(way)} is used: the best that works here${trial(way)}`;
    if (way.ok === true) return `${wayName(way)} works, but a better one does`;
    if (way.ok === null) return `${wayName(way)} was not tried${index > decided ? ", because a better one works" : ""}`;
    return `${wayName(way)} does not work: ${way.reason}`;
  });
  return { chosen, reasons };
}

function trial({ durationMs }: WayFound): string {
  return durationMs === null ? "" : ` (booted, saved, cloned and given a disk in ${durationMs} ms)`;
}
