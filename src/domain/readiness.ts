import type { Isolation } from "./operation.ts";

/** Whether instances can run, and how they are isolated from the host. */
export interface Readiness {
  readonly ready: boolean;
  /** null until the probe has decided, or when no virtual machine monitor can be used */
  readonly isolation: Isolation | null;
  /** human-readable reason why the service is not ready; empty when it is */
  readonly reason: string;
  readonly checks: readonly Check[];
}

/** The check of one requirement of instances or imports. */
export interface Check {
  readonly name: string;
  readonly ok: boolean;
  /** human-readable reason of a failure; empty when `ok` */
  readonly reason: string;
}
