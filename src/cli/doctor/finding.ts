import type { Acceleration, VmmName } from "../../vm/vmm.ts";

/** `note`: works, but somebody should know. `problem`: does not work. */
export type FindingState = "ok" | "note" | "problem";

export interface Finding {
  readonly name: string;
  readonly state: FindingState;
  /** what was found */
  readonly summary: string;
  /** what it is for, or what its absence means */
  readonly meaning: string;
  /** a command to paste; null when there is nothing to do, or no command does it */
  readonly fix: string | null;
}

/** What a trial of one way found: it boots a VM, saves it, clones it and attaches a disk. */
export interface Verdict {
  readonly vmm: VmmName;
  readonly acceleration: Acceleration;
  readonly ok: boolean;
  readonly reason: string;
  readonly durationMs: number;
}
