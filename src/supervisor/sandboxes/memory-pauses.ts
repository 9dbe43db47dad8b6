import type { Database } from "../../db/database.ts";
import { getOperation } from "../../db/operations.ts";
import type { SandboxRow } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId, SandboxId } from "../../domain/ids.ts";
import { type StateReason, sandboxConflict } from "../../domain/sandbox.ts";
import type { Log } from "../../log.ts";
import type { MemoryImages } from "../memory/memory-images.ts";
import { instanceOf, type Transitions } from "./transitions.ts";

export interface MemoryPausesOptions {
  readonly db: Database;
  readonly log: Log;
  readonly memory: Pick<MemoryImages, "keep">;
  readonly transitions: Pick<Transitions, "capture">;
}

/**
 * Pauses sandboxes with their memory. While that is written, a sandbox is still `running`: it continues as if nothing had been
 * when the memory cannot be kept. Only then its processes are given up here, and its files are captured.
 */
export class MemoryPauses {
  readonly #options: MemoryPausesOptions;
  readonly #underWay = new Set<SandboxId>();

  constructor(options: MemoryPausesOptions) {
    this.#options = options;
  }

  /** Returns the operation that makes the image. @throws as `MemoryImages.keep` does */
  async withMemory(row: SandboxRow, reason: StateReason): Promise<OperationId> {
    const { db, memory, transitions } = this.#options;
    const instanceId = instanceOf(row);
    const imageId = getOperation(db, row.accountId, instanceId)?.imageId ?? null;
    if (imageId === null) throw sandboxConflict(row.state);
    this.#underWay.add(row.id);
    using _underWay = { [Symbol.dispose]: () => void this.#underWay.delete(row.id) };
    const { signal } = new AbortController();
    await using kept = await memory.keep(row, { id: instanceId, imageId }, signal);
    const operationId = transitions.capture(row, reason, { reason: "pause", tag: null, memory: kept });
    kept.handOver(operationId);
    return operationId;
  }

  /** Pauses a sandbox at its deadline, or because it is idle: without its memory when that cannot be kept. */
  automatic(row: SandboxRow, reason: StateReason): void {
    const { transitions, log } = this.#options;
    if (this.#underWay.has(row.id)) return;
    const filesOnly = () => void transitions.capture(row, reason, { reason: "pause", tag: null });
    if (!row.pauseMemory) {
      filesOnly();
      return;
    }
    this.withMemory(row, reason)
      .catch((error: unknown) => {
        log.warn("a sandbox is paused without its memory", { sandbox: row.id, error });
        filesOnly();
      })
      .catch((error: unknown) => {
        // Another request was faster.
        if (!(error instanceof ApiError)) log.error("a sandbox cannot be paused", { sandbox: row.id, error });
      });
  }
}
