import type { Isolation } from "./operation.ts";

/** Whether instances can run, and how well they are separated from the host. */
export interface Readiness {
  readonly ready: boolean;
  /** null until the probe has decided, or when no virtual machine monitor may be used */
  readonly isolation: Isolation | null;
  /** why it is not ready, for a person; empty when it is */
  readonly reason: string;
  readonly checks: readonly Check[];
}

/** One thing that instances or imports need. */
export interface Check {
  readonly name: string;
  readonly ok: boolean;
  /** what is wrong, for a person; empty when nothing is */
  readonly reason: string;
}
