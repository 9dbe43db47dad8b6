import { executingOperations } from "../../db/operations.ts";
import { sandboxOfOperation } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { Reclaimed } from "../../domain/operator/reclaimed.ts";
import type { RunningOperation, RunningWork } from "../../domain/operator/restart.ts";
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

/** The operations that the operator commands. */
type DeskOperations = Pick<Operations, "admission" | "end">;

export interface DeskOptions extends ReclaimOptions {
  readonly version: string;
  /** whether a stop of the daemon leaves its instances to the next one */
  readonly leavesInstances: boolean;
}

/** Where the operator on the host commands the daemon. Commands that need operations wait until these have been recovered. */
export class OperatorDesk {
  /** resolves with the first stop; the daemon's owner performs it */
  readonly stopRequested: Promise<Stop>;
  readonly #options: DeskOptions;
  readonly #stop = Promise.withResolvers<Stop>();
  readonly #operations = Promise.withResolvers<DeskOperations>();
  #stopping: Stop | null = null;

  constructor(options: DeskOptions) {
    this.#options = options;
    this.stopRequested = this.#stop.promise;
  }

  /** To be called when operations have been recovered. */
  open(operations: DeskOperations): void {
    this.#operations.resolve(operations);
  }

  /** Ends everything that runs, as FAILED. No work begins afterwards. */
  async endAll(by: "operator" | "host"): Promise<void> {
    const operations = await this.#operations.promise;
    await operations.end(by === "host" ? HOST_STOPPED : STOPPED_WITH_ALL);
  }

  gc(dryRun: boolean): Promise<Reclaimed> {
    return reclaim(this.#options, { dryRun });
  }

  async running(): Promise<RunningWork> {
    await this.#operations.promise;
    const { version, leavesInstances } = this.#options;
    return { version, pid: process.pid, leavesInstances, operations: this.#running() };
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
    await this.#operations.promise;
    const first = this.#stopping ?? stop;
    if (stop.all && !first.all) {
      throw new ApiError(
        "conflict",
        "the appliance stops already and leaves its instances: repeat this when it has stopped",
      );
    }
    this.#stopping = first;
    this.#stop.resolve(first);
  }

  async hold(): Promise<Disposable> {
    const { admission } = await this.#operations.promise;
    const { log } = this.#options;
    const held = admission.hold();
    log.info("new work waits, for the operator");
    return {
      [Symbol.dispose]: () => {
        held[Symbol.dispose]();
        log.info("new work may begin again");
      },
    };
  }
}
