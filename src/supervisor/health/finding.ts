import type { Acceleration, VmmName } from "../../vm/vmm.ts";

/** `note`: it works, with a restriction that the user should know. `problem`: it does not work. */
export type FindingState = "ok" | "note" | "problem";

export interface Finding {
  readonly name: string;
  readonly state: FindingState;
  /** the state that the check found */
  readonly summary: string;
  /** purpose of the prerequisite, or the effect of its absence */
  readonly meaning: string;
  /** a command to paste; null when there is nothing to do, or no command does it */
  readonly fix: string | null;
}

/** Result of a trial of one way to run VMs: the trial boots a VM, saves it, clones it and attaches a disk. */
export interface Verdict {
  readonly vmm: VmmName;
  readonly acceleration: Acceleration;
  readonly ok: boolean;
  readonly reason: string;
  readonly durationMs: number;
}
