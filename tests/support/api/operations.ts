import { eq } from "drizzle-orm";
import type { Database } from "../../../src/db/database.ts";
import {
  failOperation,
  getOperation,
  insertOperation,
  requestCancel,
  startOperation,
} from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import type { NewRequest } from "../../../src/db/requests.ts";
import { operations } from "../../../src/db/schema.ts";
import type { ApiError, ErrorBody } from "../../../src/domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../../src/domain/ids.ts";
import type { InstanceStats } from "../../../src/domain/instance.ts";
import type { NetworkAudit } from "../../../src/domain/network.ts";
import { isTerminal, type OperationKind } from "../../../src/domain/operation.ts";
import type { Readiness } from "../../../src/domain/readiness.ts";
import type { InstanceSubmission } from "../../../src/domain/spawn.ts";
import { silentLog } from "../../../src/log.ts";
import type { AccountChanges } from "../../../src/supervisor/account-changes.ts";
import type { ImportSubmission } from "../../../src/supervisor/imports/import-image.ts";
import type { CheckpointSubmission } from "../../../src/supervisor/instance/checkpoint-instance.ts";
import type { SandboxRun } from "../../../src/supervisor/kinds/sandbox.ts";
import { OperationChanges } from "../../../src/supervisor/operations/changes.ts";
import type { Kind } from "../../../src/supervisor/operations/kind.ts";
import type { CancelOutcome, OperationsPort } from "../../../src/supervisor/operations/ports.ts";
import { pause } from "../waiting.ts";

const POLL_MS = 5;

/** Stores submitted work in the real database as the supervisor does, and leaves the work itself to the test. */
export class HeldOperations implements OperationsPort {
  readonly imports: ImportSubmission[] = [];
  readonly instances: InstanceSubmission[] = [];
  readonly checkpoints: CheckpointSubmission[] = [];
  readonly sandboxes: SandboxRun[] = [];
  samples: readonly InstanceStats[] = [];
  /** the error of every submission */
  refusal: ApiError | null = null;
  /** open streams of samples */
  openStats = 0;
  /** requests that wait for the end of an operation */
  waitsCount = 0;
  state: Readiness = { ready: true, isolation: "vm-emulated", reason: "", checks: [] };
  /** the ends of operations */
  readonly changes = new OperationChanges(silentLog);
  readonly #db: Database;
  readonly #clock: () => number;
  readonly #changes: AccountChanges;
  readonly #submitted: Readonly<Record<OperationKind, unknown[]>> = {
    image_import: this.imports,
    instance: this.instances,
    checkpoint: this.checkpoints,
    sandbox: this.sandboxes,
  };

  constructor(db: Database, clock: () => number, changes: AccountChanges) {
    this.#changes = changes;
    this.#db = db;
    this.#clock = clock;
  }

  /** Machines of forks are never made here. */
  begin(): never {
    throw new Error("an operation with a machine");
  }

  async submit<Submission>(
    accountId: AccountId,
    kind: Pick<Kind<Submission, unknown, unknown, never>, "name" | "store">,
    submission: NoInfer<Submission>,
    also?: (id: OperationId) => void,
  ) {
    if (this.refusal !== null) throw this.refusal;
    this.#submitted[kind.name].push(submission);
    const { row, credentials, imageId } = kind.store(submission);
    return this.insert(accountId, kind.name, row, credentials !== null, imageId, also);
  }

  insert(
    accountId: AccountId,
    kind: OperationKind,
    request: NewRequest | null = null,
    hadCredentials = false,
    imageId: ImageId | null = null,
    also: ((id: OperationId) => void) | undefined = undefined,
  ) {
    const id = Bun.randomUUIDv7() as OperationId;
    const row = insertOperation(this.#db, {
      id,
      accountId,
      kind,
      request,
      hadCredentials,
      imageId,
      now: this.#clock(),
      also,
    });
    this.#changes.report(accountId, { type: "operation", id });
    return row;
  }

  start(id: OperationId): void {
    if (!startOperation(this.#db, id, this.#clock())) throw new Error("not PENDING");
    this.tell(id);
  }

  succeed(id: OperationId, result: Record<string, unknown>, network: NetworkAudit | null = null): void {
    const publication = { operationId: id, result, now: this.#clock(), network };
    if (!publishOperation(this.#db, publication)) throw new Error("not EXECUTING");
    this.tell(id);
  }

  fail(id: OperationId, error: ErrorBody, network: NetworkAudit | null = null): void {
    if (!failOperation(this.#db, id, error, this.#clock(), network)) throw new Error("ended already");
    this.tell(id);
  }

  cancel(accountId: AccountId, id: OperationId): CancelOutcome {
    const outcome = requestCancel(this.#db, accountId, id, this.#clock());
    this.tell(id);
    return outcome === "cancelling" || outcome === "cancelled" ? "accepted" : outcome;
  }

  async waitForEnd(id: OperationId, timeoutMs: number, signal: AbortSignal): Promise<void> {
    const endsAt = performance.now() + timeoutMs;
    this.waitsCount++;
    while (!signal.aborted && performance.now() < endsAt && !this.#hasEnded(id)) await pause("the next look", POLL_MS);
    this.waitsCount--;
  }

  stats(id: OperationId, signal: AbortSignal): AsyncIterable<InstanceStats> | null {
    return this.#statusOf(id) === "EXECUTING" ? this.#samplesUntil(signal) : null;
  }

  readiness(): Readiness {
    return this.state;
  }

  /** Reports the state of an operation that has changed. */
  tell(id: OperationId): void {
    const { accountId, kind, status, error } = operations;
    const row = this.#db.orm
      .select({ accountId, kind, status, error })
      .from(operations)
      .where(eq(operations.id, id))
      .get();
    if (row === undefined) return;
    const operation = { id, accountId: row.accountId, kind: row.kind };
    this.#changes.report(row.accountId, { type: "operation", id });
    const { status: end } = row;
    if (end === "SUCCESS" || end === "FAILED" || end === "CANCELLED") {
      this.changes.emit({ type: "ended", operation, status: end, error: row.error, phases: [] });
    }
  }

  async *#samplesUntil(signal: AbortSignal): AsyncGenerator<InstanceStats> {
    this.openStats++;
    try {
      for (const sample of this.samples) {
        if (signal.aborted) return;
        yield sample;
        await pause("the next sample", POLL_MS);
      }
    } finally {
      this.openStats--;
    }
  }

  #hasEnded(id: OperationId): boolean {
    const status = this.#statusOf(id);
    return status === null || isTerminal(status);
  }

  #statusOf(id: OperationId) {
    const accounts = ["alice", "bob"] as AccountId[];
    for (const account of accounts) {
      const row = getOperation(this.#db, account, id);
      if (row !== null) return row.status;
    }
    return null;
  }
}
