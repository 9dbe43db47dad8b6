import { describe, expect, test } from "bun:test";
import type { Database } from "../../../src/db/database.ts";
import { getOperation, pendingOperations, recoverOperations, requestCancel } from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import type { ErrorBody } from "../../../src/domain/errors.ts";
import type { OperationId } from "../../../src/domain/ids.ts";
import { addExecuting, addOperation, alice, bob, databasePerTest } from "../../support/database.ts";

const NOTHING = { kept: new Set<OperationId>(), unbegun: new Set<OperationId>() };

let db: Database;
databasePerTest((each) => {
  db = each.db;
});

const row = (id: OperationId) => {
  const operation = getOperation(db, alice, id);
  if (operation === null) throw new Error("no row");
  return operation;
};

describe("after a restart", () => {
  const interrupted: ErrorBody = { error: "internal_error", message: "the service was restarted", details: {} };
  const credentialsLost: ErrorBody = { error: "unavailable", message: "credentials are gone", details: {} };

  test("running operations end FAILED or CANCELLED, waiting ones with credentials and forks end FAILED, the others wait", () => {
    const ran = addExecuting(db);
    const cancelling = addExecuting(db);
    requestCancel(db, alice, cancelling, 3);
    const waiting = addOperation(db);
    const secret = addOperation(db, { hadCredentials: true, accountId: bob });
    const secretRan = addExecuting(db, { hadCredentials: true });
    const fork = addOperation(db, { fork: { parentId: ran, atEvent: 7 } });
    expect(row(fork)).toMatchObject({ parentId: ran, forkedAtEvent: 7 });
    const done = addExecuting(db);
    publishOperation(db, { operationId: done, result: { exit_code: 0 }, now: 3 });
    const doneBefore = row(done);
    const recovered = recoverOperations(db, { ...NOTHING, interrupted: () => interrupted, credentialsLost, now: 50 });
    const ended = new Map(recovered.map(({ id, ...rest }) => [id, rest]));
    const cutOff = { accountId: alice, kind: "instance", status: "FAILED", error: interrupted };
    expect(ended).toEqual(
      new Map([
        [ran, cutOff],
        [secretRan, cutOff],
        [fork, cutOff],
        [secret, { ...cutOff, accountId: bob, error: credentialsLost }],
        [cancelling, { ...cutOff, status: "CANCELLED" }],
      ] as const) as typeof ended,
    );
    expect(row(ran)).toMatchObject({ status: "FAILED", error: interrupted, finishedAt: 50 });
    expect(row(secretRan)).toMatchObject({ status: "FAILED", error: interrupted });
    expect(row(cancelling)).toMatchObject({ status: "CANCELLED", finishedAt: 50 });
    expect(getOperation(db, bob, secret)).toMatchObject({ status: "FAILED", error: credentialsLost });
    expect(row(done)).toEqual(doneBefore);
    expect(pendingOperations(db).map((o) => o.id)).toEqual([waiting]);
    expect(recoverOperations(db, { ...NOTHING, interrupted: () => interrupted, credentialsLost, now: 60 })).toEqual([]);
  });

  test("an operation whose machine runs on stays EXECUTING", () => {
    const kept = addExecuting(db);
    const before = row(kept);
    const options = { unbegun: new Set<OperationId>(), interrupted: () => interrupted, credentialsLost, now: 50 };
    expect(recoverOperations(db, { ...options, kept: new Set([kept]) })).toEqual([]);
    expect(row(kept)).toEqual(before);
  });

  test("an operation that has not begun waits again, unless it was cancelled", () => {
    const [unbegun, cancelling] = [addExecuting(db), addExecuting(db)];
    requestCancel(db, alice, cancelling, 3);
    const options = { kept: new Set<OperationId>(), interrupted: () => interrupted, credentialsLost, now: 50 };
    const ended = recoverOperations(db, { ...options, unbegun: new Set([unbegun, cancelling]) });
    expect(ended.map(({ id, status }) => [id, status])).toEqual([[cancelling, "CANCELLED"]]);
    expect(row(unbegun)).toMatchObject({ status: "PENDING", startedAt: null, finishedAt: null });
  });
});
