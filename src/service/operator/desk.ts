import type { CgroupTree } from "../../cgroup/cgroup.ts";
import { executingOperations } from "../../db/operations.ts";
import { sandboxOfOperation } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { Reclaimed } from "../../domain/operator/reclaimed.ts";
import type { RunningOperation, RunningWork } from "../../domain/operator/restart.ts";
import type { RunningInstances } from "../../supervisor/instance/running-instances.ts";
import { HOST_STOPPED, STOPPED_WITH_ALL } from "../../supervisor/operations/failures.ts";
import type { Operations } from "../../supervisor/operations/operations.ts";
import { type ReclaimOptions, reclaim } from "../../supervisor/reclaim.ts";

/** A stop that the operator has asked for. */
export interface Stop {
  /** instances end, also where a stop leaves them */
  readonly all: boolean;
  /** the process ends with the next signal */
  readonly awaitsSignal: boolean;
}

/** Whether a stop leaves instances to the next daemon. in_unit: if they are in the unit of the machines. */
export type Leave = "always" | "in_unit" | "never";

export interface DeskOptions extends ReclaimOptions {
  readonly version: string;
  readonly leave: Leave;
  readonly cgroups: Pick<CgroupTree, "isInUnit">;
}

/** The parts of the daemon that the operator commands. */
interface DeskParts {
  readonly operations: Pick<Operations, "admission" | "end" | "leave">;
  readonly instances: Pick<RunningInstances, "atStop">;
  /** accepts requests of clients */
  readonly listener: { stop(graceMs: number): Promise<void> };
}

/** Grace period for requests before instances are left, in `milliseconds`: clients continue at the next daemon. */
const LEAVE_GRACE_MS = 250;

/** Where the operator on the host commands the daemon. Commands wait until it listens, except `gc`. */
export class OperatorDesk {
  /** resolves with the first stop; the daemon's owner performs it */
  readonly stopRequested: Promise<Stop>;
  readonly #options: DeskOptions;
  readonly #stop = Promise.withResolvers<Stop>();
  readonly #parts = Promise.withResolvers<DeskParts>();
  #stopping: Stop | null = null;

  constructor(options: DeskOptions) {
    this.#options = options;
    this.stopRequested = this.#stop.promise;
  }

  /** To be called when the daemon listens. */
  open(parts: DeskParts): void {
    this.#parts.resolve(parts);
  }

  /** Whether a stop leaves instances to the next daemon. */
  get leavesInstances(): boolean {
    const { leave, cgroups } = this.#options;
    return leave === "always" || (leave === "in_unit" && cgroups.isInUnit);
  }

  /** Ends everything that runs, as FAILED. No work begins afterwards. */
  async endAll(by: "operator" | "host"): Promise<void> {
    const { operations } = await this.#parts.promise;
    await operations.end(by === "host" ? HOST_STOPPED : STOPPED_WITH_ALL);
  }

  /**
   * Leaves instances to the next daemon, and ends the rest. This process must exit without disposal then. Returns the number of
   * instances; null: nothing is left, and the daemon is to be disposed of.
   */
  async leave(): Promise<number | null> {
    const { operations, instances, listener } = await this.#parts.promise;
    if (!this.leavesInstances) return null;
    await listener.stop(LEAVE_GRACE_MS);
    return await operations.leave(({ id, kind }) => {
      if (kind !== "instance" && kind !== "sandbox") return "ends";
      // The machine of a sandbox that has ended, or was rolled back, is not needed.
      if (kind === "sandbox" && sandboxOfOperation(this.#options.db, id) === null) return "ends";
      const stop = instances.atStop(id);
      // A sandbox has no request that could start it again.
      return kind === "sandbox" && stop === "begins_again" ? "ends" : stop;
    });
  }

  gc(dryRun: boolean): Promise<Reclaimed> {
    return reclaim(this.#options, { dryRun });
  }

  async running(): Promise<RunningWork> {
    await this.#parts.promise;
    const { leavesInstances } = this;
    return { version: this.#options.version, pid: process.pid, leavesInstances, operations: this.#running() };
  }

  #running(): RunningOperation[] {
    const { db } = this.#options;
    return executingOperations(db).map(({ id, accountId, kind }) => {
      const sandbox = kind === "sandbox" ? (sandboxOfOperation(db, id)?.name ?? null) : null;
      return { id, accountId, kind, sandbox };
    });
  }

  /** @throws ApiError `conflict` when a stop is under way that leaves what this one would end */
  async stop(stop: Stop): Promise<void> {
    await this.#parts.promise;
    const first = this.#stopping ?? stop;
    if (stop.all && !first.all && this.leavesInstances) {
      throw new ApiError(
        "conflict",
        "the appliance stops already and leaves its instances: repeat this when it has stopped",
      );
    }
    this.#stopping = first;
    this.#stop.resolve(first);
  }

  async hold(): Promise<Disposable> {
    const { operations } = await this.#parts.promise;
    const { log } = this.#options;
    const held = operations.admission.hold();
    log.info("new work waits, for the operator");
    return {
      [Symbol.dispose]: () => {
        held[Symbol.dispose]();
        log.info("new work may begin again");
      },
    };
  }
}
