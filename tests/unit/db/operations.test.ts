import { describe, expect, spyOn, test } from "bun:test";
import { readFileSync } from "node:fs";
import type { Database } from "../../../src/db/database.ts";
import { listOperationsSync, type OperationFilter } from "../../../src/db/operation-listing.ts";
import {
  deleteOperationsFinishedBefore,
  executingOperations,
  existingOperations,
  failOperation,
  getOperation,
  insertOperation,
  pendingOperations,
  recoverOperations,
  requestCancel,
  requeueOperation,
  startOperation,
} from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import { liveOperationsOf, operationRequest, queuedOperations } from "../../../src/db/requests.ts";
import type { ErrorBody } from "../../../src/domain/errors.ts";
import type { OperationId } from "../../../src/domain/ids.ts";
import {
  nextStatus,
  OPERATION_STATUSES,
  OPERATION_TRANSITIONS,
  type OperationStatus,
} from "../../../src/domain/operation.ts";
import {
  addExecuting,
  addOperation,
  alice,
  bob,
  databasePerTest,
  newId,
  type TestDatabase,
} from "../../support/database.ts";
import { until } from "../../support/waiting.ts";

const NOTHING = { kept: new Set<OperationId>(), unbegun: new Set<OperationId>() };

let opened: TestDatabase;
let db: Database;
databasePerTest((each) => {
  opened = each;
  db = each.db;
});

const error: ErrorBody = { error: "internal_error", message: "broke", details: { cpu_time_ms: 5 } };
const row = (id: OperationId) => {
  const operation = getOperation(db, alice, id);
  if (operation === null) throw new Error("no row");
  return operation;
};

/** An operation that the public functions have brought to `status`. */
function operationIn(status: OperationStatus): OperationId {
  const id = addOperation(db);
  if (status === "PENDING") return id;
  startOperation(db, id, 2);
  if (status === "SUCCESS") publishOperation(db, { operationId: id, result: { exit_code: 0 }, now: 3 });
  if (status === "FAILED") failOperation(db, id, error, 3);
  if (status === "CANCELLED") cancelled(id, 3);
  expect(row(id).status).toBe(status);
  return id;
}

/** Requests a cancel and, if it executes, ends it as its work does. */
function cancelled(id: OperationId, now: number): boolean {
  const outcome = requestCancel(db, alice, id, now);
  return outcome === "cancelling" ? failOperation(db, id, error, now) === "CANCELLED" : outcome === "cancelled";
}

const APPLY = {
  start: (id: OperationId) => startOperation(db, id, 9),
  requeue: (id: OperationId) => requeueOperation(db, id),
  succeed: (id: OperationId) => publishOperation(db, { operationId: id, result: { exit_code: 1 }, now: 9 }) !== null,
  fail: (id: OperationId) => failOperation(db, id, error, 9) !== null,
  cancel: (id: OperationId) => cancelled(id, 9),
};

describe("transitions", () => {
  for (const status of OPERATION_STATUSES) {
    for (const event of OPERATION_TRANSITIONS) {
      const target = nextStatus(status, event);
      test(`${event} of ${status} ${target === null ? "changes nothing" : `leads to ${target}`}`, () => {
        const id = operationIn(status);
        const before = row(id);
        const request = operationRequest(db, id);
        expect(APPLY[event](id)).toBe(target !== null);
        if (target === null) {
          expect(row(id)).toEqual(before);
          expect(operationRequest(db, id)).toEqual(request);
          return;
        }
        const isTerminal = target !== "EXECUTING" && target !== "PENDING";
        expect(row(id)).toMatchObject({
          status: target,
          finishedAt: isTerminal ? 9 : null,
          startedAt: event === "start" ? 9 : event === "requeue" ? null : before.startedAt,
          // The figures of interrupted work are kept.
          error: event === "fail" || (event === "cancel" && status === "EXECUTING") ? error : null,
          result: event === "succeed" ? { exit_code: 1 } : null,
        });
        expect(operationRequest(db, id)?.body).toEqual({ command: "true" });
      });
    }
  }

  test("of an operation that does not exist do nothing", () => {
    for (const event of OPERATION_TRANSITIONS) expect(APPLY[event](newId())).toBe(false);
  });
});

describe("a cancel", () => {
  test("of a PENDING operation ends it at once", () => {
    const id = addOperation(db);
    expect(requestCancel(db, alice, id, 7)).toBe("cancelled");
    expect(row(id)).toMatchObject({ status: "CANCELLED", finishedAt: 7, startedAt: null, cancelRequestedAt: 7 });
    expect(requestCancel(db, alice, id, 8)).toBe("terminal");
    expect(startOperation(db, id, 8)).toBe(false);
  });

  test("of an EXECUTING operation marks it once, and it can only end CANCELLED", () => {
    for (const end of ["fail", "cancel"] as const) {
      const id = addExecuting(db);
      expect(requestCancel(db, alice, id, 7)).toBe("cancelling");
      expect(requestCancel(db, alice, id, 8)).toBe("cancelling");
      expect(row(id)).toMatchObject({ status: "EXECUTING", cancelRequestedAt: 7, finishedAt: null });
      expect(APPLY.succeed(id)).toBe(false);
      expect(APPLY[end](id)).toBe(true);
      expect(row(id)).toMatchObject({ status: "CANCELLED", finishedAt: 9, result: null });
    }
  });

  test("of a terminal operation changes nothing", () => {
    for (const status of ["SUCCESS", "FAILED", "CANCELLED"] as const) {
      const id = operationIn(status);
      const before = row(id);
      expect(requestCancel(db, alice, id, 7)).toBe("terminal");
      expect(row(id)).toEqual(before);
    }
  });

  test("of another account's or a missing operation finds nothing", () => {
    const id = addExecuting(db);
    expect(requestCancel(db, bob, id, 7)).toBe("not_found");
    expect(requestCancel(db, alice, newId(), 7)).toBe("not_found");
    expect(row(id).cancelRequestedAt).toBeNull();
  });
});

describe("an operation", () => {
  test("is a PENDING row with its request before its work begins", () => {
    const id = newId();
    const stored = { body: { command: "é\u0000" }, secrets: { env: { A: "b" } }, resources: null };
    const request = { ...stored, sizeBytes: 40 };
    const now = 1_800_000_000_123;
    insertOperation(db, { id, accountId: alice, kind: "image_import", request, hadCredentials: true, now });
    expect(row(id)).toEqual({
      id,
      accountId: alice,
      kind: "image_import",
      status: "PENDING",
      createdAt: now,
      startedAt: null,
      finishedAt: null,
      cancelRequestedAt: null,
      imageId: null,
      parentId: null,
      forkedAtEvent: null,
      hadCredentials: true,
      error: null,
      result: null,
      network: null,
    });
    expect(operationRequest(db, id)).toEqual(stored);
  });

  test("without a request has none", () => {
    expect(operationRequest(db, addOperation(db, { request: null }))).toBeNull();
  });

  test("is visible to its account only", () => {
    const id = addOperation(db);
    expect(getOperation(db, bob, id)).toBeNull();
    expect(getOperation(db, alice, newId())).toBeNull();
  });

  test("cannot be inserted twice, and a failed insert leaves nothing", () => {
    const id = addOperation(db);
    expect(() => addOperation(db, { id, accountId: bob, now: 99 })).toThrow("UNIQUE");
    expect(row(id).createdAt).toBe(1);
    expect(listOperationsSync(db, bob, { limit: 10, offset: 0 })).toEqual([]);
  });

  test("cannot start from an image that does not exist", () => {
    expect(() => addOperation(db, { imageId: newId() as never })).toThrow("the image is gone");
  });
});

describe("a request", () => {
  const resources = { vcpus: 2, memoryBytes: 3, diskBytes: 4 };

  test("loses its secrets at any end of its operation; the rest stays as long as the operation", () => {
    const body = { argv: ["true"] };
    const request = { body, secrets: { env: { KEY: "canary-secret" } }, resources, sizeBytes: 9 };
    const ends = [
      (id: OperationId) => requestCancel(db, alice, id, 3),
      (id: OperationId) => failOperation(db, id, error, 3),
      (id: OperationId) => {
        startOperation(db, id, 2);
        publishOperation(db, { operationId: id, result: {}, now: 3 });
      },
    ];
    for (const end of ends) {
      const id = addOperation(db, { request });
      expect(operationRequest(db, id)?.secrets).toEqual(request.secrets);
      end(id);
      expect(operationRequest(db, id)).toEqual({ body, secrets: null, resources });
    }
    const id = addOperation(db, { request });
    startOperation(db, id, 2);
    expect(operationRequest(db, id)?.secrets).toEqual(request.secrets);
    recoverOperations(db, { ...NOTHING, interrupted: () => error, credentialsLost: error, now: 3 });
    expect(operationRequest(db, id)?.secrets).toBeNull();
    expect(deleteOperationsFinishedBefore(db, 100, 1)).toHaveLength(1);
    db[Symbol.dispose]();
    expect(readFileSync(opened.path).includes("canary-secret")).toBe(false);
  });

  test("leaves the log of the database, too, while that is in use", async () => {
    const log = () => readFileSync(`${opened.path}-wal`);
    const id = addOperation(db, { request: { body: {}, secrets: { env: { KEY: "canary-secret" } } } });
    failOperation(db, id, error, 3);
    expect(log().includes("canary-secret")).toBe(true);
    const { setTimeout: later } = globalThis;
    const delays: number[] = [];
    {
      using _timers = spyOn(globalThis, "setTimeout").mockImplementation(((work: () => void, delayMs = 0) => {
        delays.push(delayMs);
        return later(work, 0);
      }) as typeof setTimeout);
      db.eraseSoon();
      db.eraseSoon();
    }
    expect(delays).toEqual([60_000]);
    await until("the log is empty", () => log().byteLength === 0);
    expect(readFileSync(opened.path).includes("canary-secret")).toBe(false);
    // Later ones are erased as well.
    await until("it can be asked again", () => {
      using timers = spyOn(globalThis, "setTimeout");
      db.eraseSoon();
      return timers.mock.calls.length === 1;
    });
    expect(addOperation(db, { request: null })).toBeString();
  });

  test("that is large is not kept after the end", () => {
    const id = addOperation(db, { request: { body: { argv: ["x".repeat(70_000)] } } });
    expect(operationRequest(db, id)).not.toBeNull();
    failOperation(db, id, error, 3);
    expect(operationRequest(db, id)).toBeNull();
  });

  test("is not read to list waiting operations", () => {
    const id = addOperation(db, { request: { body: { argv: ["x"] }, resources, sizeBytes: 7 }, now: 2 });
    const none = addOperation(db, { kind: "image_import", accountId: bob, request: null, now: 1 });
    addExecuting(db);
    expect(queuedOperations(db)).toEqual([
      { id: none, accountId: bob, kind: "image_import", resources: null, sizeBytes: 0 },
      { id, accountId: alice, kind: "instance", resources, sizeBytes: 7 },
    ]);
    const ended = operationIn("FAILED");
    expect(liveOperationsOf(db, [id, ended, newId()])).toEqual(new Set([id]));
  });
});

const EVERY_THIRD = [{ kind: "image_import" }] as const;

describe("listings", () => {
  const list = (filter: Partial<OperationFilter> = {}) =>
    listOperationsSync(db, alice, { limit: 100, offset: 0, ...filter }).map((operation) => operation.id);

  test("are newest first, then by id, in pages, for one account", () => {
    const ids = Array.from({ length: 20 }, (_, n) =>
      addOperation(db, { ...EVERY_THIRD[n % 3], now: Math.floor(n / 4) }),
    );
    addOperation(db, { accountId: bob, now: 3 });
    const expected = ids.toReversed();
    expect(list()).toEqual(expected);
    expect(list({ kinds: ["instance", "image_import"], limit: 9, offset: 3 })).toEqual(expected.slice(3, 12));
    expect(list({ limit: 3, offset: 2 })).toEqual(expected.slice(2, 5));
    expect(list({ offset: 20 })).toEqual([]);
    expect(list({ offset: 1_000_000 })).toEqual([]);
  });

  test("have inclusive bounds of time", () => {
    const [one, two, three] = [10, 20, 30].map((now) => addOperation(db, { now }));
    expect(list({ sinceMs: 20 })).toEqual([three, two] as OperationId[]);
    expect(list({ untilMs: 20 })).toEqual([two, one] as OperationId[]);
    expect(list({ sinceMs: 20, untilMs: 20 })).toEqual([two] as OperationId[]);
    expect(list({ sinceMs: 31 })).toEqual([]);
    expect(list({ sinceMs: 20, untilMs: 19 })).toEqual([]);
  });

  test("filter by every status and kind, alone and together", () => {
    for (let n = 0; n < 30; n++) {
      const kind = n % 5 === 0 ? "checkpoint" : n % 2 === 0 ? "instance" : "image_import";
      const id = addOperation(db, { kind, now: n });
      if (n % 3 > 0) startOperation(db, id, n);
      if (n % 3 > 1) failOperation(db, id, error, n);
    }
    const all = listOperationsSync(db, alice, { limit: 100, offset: 0 });
    for (const status of [undefined, ...OPERATION_STATUSES]) {
      for (const kind of [undefined, "instance", "image_import"] as const) {
        const expected = all.filter((o) => (status ?? o.status) === o.status && (kind ?? o.kind) === o.kind);
        expect(list({ status, kind })).toEqual(expected.map((o) => o.id));
        const late = expected.filter((o) => o.createdAt >= 10 && o.createdAt <= 20).map((o) => o.id);
        expect(list({ status, kind, sinceMs: 10, untilMs: 20 })).toEqual(late);
        expect(list({ status, kind, kinds: ["instance", "image_import"] })).toEqual(
          expected.filter((o) => o.kind !== "checkpoint").map((o) => o.id),
        );
      }
    }
  });

  test("of unfinished operations are oldest first, and cover all accounts", () => {
    const second = addOperation(db, { now: 2 });
    const first = addOperation(db, { now: 1, accountId: bob });
    const running = addExecuting(db, { now: 0 });
    failOperation(db, addExecuting(db), error, 5);
    expect(pendingOperations(db).map((o) => o.id)).toEqual([first, second]);
    expect(executingOperations(db).map((o) => o.id)).toEqual([running]);
  });
});

describe("retention", () => {
  test("removes the oldest terminal operations in portions, and no unfinished one", () => {
    const old = [1, 2, 3].map((now) => {
      const id = addExecuting(db);
      failOperation(db, id, error, now);
      return id;
    });
    const recent = addExecuting(db);
    failOperation(db, recent, error, 10);
    const living = [addOperation(db, { now: 0 }), addExecuting(db, { now: 0 })];
    expect(deleteOperationsFinishedBefore(db, 10, 2)).toEqual(old.slice(0, 2));
    expect(deleteOperationsFinishedBefore(db, 10, 2)).toEqual(old.slice(2));
    expect(deleteOperationsFinishedBefore(db, 10, 2)).toEqual([]);
    for (const id of [recent, ...living]) expect(row(id).id).toBe(id);
    for (const id of old) expect(getOperation(db, alice, id)).toBeNull();
  });

  test("of event logs applies to operations without a row", () => {
    const [pending, executing, done, failed] = (["PENDING", "EXECUTING", "SUCCESS", "FAILED"] as const).map(
      operationIn,
    );
    const ids = [pending, executing, done, failed].filter((id) => id !== undefined);
    expect(existingOperations(db, [...ids, newId()])).toEqual(new Set(ids));
    expect(existingOperations(db, [])).toEqual(new Set());
  });
});
