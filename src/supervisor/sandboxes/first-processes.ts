import type { Database } from "../../db/database.ts";
import { imageDefaults } from "../../db/images/images.ts";
import { ApiError } from "../../domain/errors.ts";
import type { SandboxId } from "../../domain/ids.ts";
import type { SandboxStart } from "../../domain/sandbox.ts";
import type { Log } from "../../log.ts";
import type { RunningInstances } from "../instance/running-instances.ts";
import type { StateChange } from "./journal.ts";

const NEVER = new AbortController().signal;

/**
 * Starts the processes that machines of sandboxes begin with: `boot` in each of them, and `start` in the first one. That one
 * is held in memory only, because it may have secrets: after a restart of the service, a sandbox that was starting has failed
 * anyway.
 */
export class FirstProcesses {
  readonly #options: {
    readonly db: Database;
    readonly instances: Pick<RunningInstances, "exec" | "eventsOf">;
    readonly log: Log;
  };
  readonly #waiting = new Map<SandboxId, SandboxStart>();

  constructor(options: { readonly db: Database; readonly instances: RunningInstances; readonly log: Log }) {
    this.#options = options;
  }

  add(id: SandboxId, start: SandboxStart): void {
    this.#waiting.set(id, start);
  }

  forget(id: SandboxId): void {
    this.#waiting.delete(id);
  }

  /** Starts the processes of a sandbox that runs now. */
  onChange({ row, from, memory }: StateChange): void {
    // With its memory, a machine has them already.
    if (from === null || from === row.state || memory === true) return;
    const start = this.#waiting.get(row.id);
    this.#waiting.delete(row.id);
    if (row.state !== "running") return;
    const { boot, env, forkedAtEvent } = row;
    // The first machine of a fork with memory has the processes of its parent.
    if (from === "starting" && typeof forkedAtEvent === "number") return;
    if (boot !== null) void this.#start(row, { command: { ...boot, env: { ...env, ...boot.env } }, timeoutMs: null });
    if (start !== undefined) void this.#start(row, start);
  }

  /** Never throws: the log of the sandbox has the error. */
  async #start({ id, operationId, headId }: StateChange["row"], { command, timeoutMs }: SandboxStart): Promise<void> {
    const { db, instances, log } = this.#options;
    if (operationId === null || headId === null) return;
    try {
      const defaults = imageDefaults(db, headId);
      await instances.exec(operationId, command, { timeoutMs, defaults, signal: NEVER });
    } catch (error) {
      log.info("the first process of a sandbox cannot be started", { sandbox: id, error });
      const message = error instanceof ApiError ? error.message : "the process could not be started";
      instances.eventsOf(operationId)?.append(null, "progress", { step: "start", error: message });
    }
  }
}
