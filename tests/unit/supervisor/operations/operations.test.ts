import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { samples } from "../../../../src/cgroup/stats.ts";
import { type Database, openDatabase } from "../../../../src/db/database.ts";
import { listOperationsSync } from "../../../../src/db/operation-listing.ts";
import { getOperation, startOperation } from "../../../../src/db/operations.ts";
import { ApiError } from "../../../../src/domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../../../src/domain/ids.ts";
import type { NetworkEntry } from "../../../../src/domain/network.ts";
import { createMetrics } from "../../../../src/metrics.ts";
import type { DataLayout } from "../../../../src/storage/layout.ts";
import { KINDS } from "../../../../src/supervisor/kinds/kinds.ts";
import type { OperationChange } from "../../../../src/supervisor/operations/changes.ts";
import type { Operations } from "../../../../src/supervisor/operations/operations.ts";
import { Scheduler } from "../../../../src/supervisor/operations/scheduler.ts";
import { type Prepared, prepared } from "../../../../src/supervisor/operations/work.ts";
import { ownTurn } from "../../../../src/system/turns.ts";
import { untilAborted as whenAborted } from "../../../../src/system/waiting.ts";
import { throwing } from "../../../support/failures.ts";
import type { OperationsStore, Preparation } from "../../../support/operations.ts";
import { operationsStore, SUBMISSION, testOperations } from "../../../support/operations.ts";
import { until } from "../../../support/waiting.ts";

const ACCOUNT = "alice" as AccountId;
const IMAGE = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as ImageId;

let store: OperationsStore;
let db: Database;
let layout: DataLayout;
beforeEach(async () => {
  store = await operationsStore(ACCOUNT, IMAGE);
  ({ db, layout } = store);
});
afterEach(async () => {
  db[Symbol.dispose]();
  await store[Symbol.asyncDispose]();
});

const spawn = (operations: Operations) => operations.submit(ACCOUNT, KINDS.instance, SUBMISSION);
const operationsOf = (run: (id: OperationId) => Preparation, more: Parameters<typeof testOperations>[2] = {}) =>
  testOperations({ db, layout }, run, more);
const RESULT = { exit_code: 0 };
/** Work that ends at once, and whose disposal is `tidy`. */
const done = (tidy: () => Promise<void> = async () => undefined, keep: () => void = () => undefined): Prepared => {
  const stack = new AsyncDisposableStack();
  stack.defer(tidy);
  return prepared(stack, { result: RESULT }, keep);
};
const succeed = (): Preparation => async () => done();
const untilAborted: Preparation = ({ signal }) =>
  new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
const never = (): never => {
  throw new Error("there is no more work");
};
const statusOf = (id: OperationId) => getOperation(db, ACCOUNT, id)?.status;
async function executing(id: OperationId): Promise<void> {
  await until("it executes", () => statusOf(id) === "EXECUTING");
}

describe("operations", () => {
  test("run to SUCCESS, which a waiting caller sees", async () => {
    const operations = operationsOf(succeed);
    const { id } = await spawn(operations);
    expect(statusOf(id)).toBe("PENDING");
    await operations.waitForEnd(id, 5000, new AbortController().signal);
    expect(getOperation(db, ACCOUNT, id)).toMatchObject({ status: "SUCCESS", result: { exit_code: 0 } });
  });

  test("end for waiting callers before their resources are disposed of", async () => {
    const tidied = Promise.withResolvers<void>();
    const operations = operationsOf(() => async () => done(() => tidied.promise));
    const { id } = await spawn(operations);
    await operations.waitForEnd(id, 5000, new AbortController().signal);
    expect(statusOf(id)).toBe("SUCCESS");
    expect(operations.counts().some(({ count }) => count > 0)).toBe(true);
    tidied.resolve();
    await operations.idle();
  });

  test("that throw end FAILED; the cause is shown only if it is an ApiError", async () => {
    const errors = [new ApiError("unavailable", "the VM died"), new Error("secret path")];
    const operations = operationsOf(() => async () => {
      throw errors.shift();
    });
    const failed = await spawn(operations);
    const hidden = await spawn(operations);
    await operations.idle();
    expect(getOperation(db, ACCOUNT, failed.id)?.error).toMatchObject({ error: "unavailable", message: "the VM died" });
    const body = JSON.stringify(getOperation(db, ACCOUNT, hidden.id)?.error);
    expect(body).toContain("internal_error");
    expect(body).not.toContain("secret");
  });

  test("record the audit of their network at any end, and nothing without a network", async () => {
    const entry = (host: string): NetworkEntry => ({
      ...{ host, port: 443, verdict: "allowed", connections: 1, bytes_sent: 2, bytes_received: 3, addresses: [] },
      ...{ first_at: "2026-01-01T00:00:00.000Z", last_at: "2026-01-01T00:00:00.000Z" },
    });
    const audits: NetworkEntry[] = [];
    const preparations: Preparation[] = [
      async ({ auditNetwork }) => {
        auditNetwork(() => ({ entries: audits, truncated: false }));
        audits.push(entry("a.example"));
        return done();
      },
      async ({ auditNetwork }) => {
        auditNetwork(() => ({ entries: [], truncated: true }));
        auditNetwork(() => ({ entries: [entry("b.example")], truncated: false }));
        throw new Error("lost");
      },
      (context, request) => {
        context.auditNetwork(() => ({ entries: [entry("c.example")], truncated: true }));
        return untilAborted(context, request);
      },
      async () => done(),
    ];
    const operations = operationsOf(() => (context, request) => preparations.shift()?.(context, request) ?? never());
    const ids: OperationId[] = [];
    for (const _each of preparations.slice()) {
      const { id } = await spawn(operations);
      ids.push(id);
      if (ids.length === 3) {
        await executing(id);
        operations.cancel(ACCOUNT, id);
      }
      await operations.idle();
    }
    const rows = ids.map((id) => getOperation(db, ACCOUNT, id));
    expect(rows.map((row) => row?.status)).toEqual(["SUCCESS", "FAILED", "CANCELLED", "SUCCESS"]);
    expect(rows.map((row) => row?.network?.entries.map(({ host }) => host) ?? null)).toEqual([
      ["a.example"],
      ["b.example"],
      ["c.example"],
      null,
    ]);
  });

  test("can be cancelled while they wait and while they run, not after their end", async () => {
    const operations = operationsOf(() => untilAborted);
    const first = await spawn(operations);
    const second = await spawn(operations);
    await executing(first.id);
    expect(operations.cancel(ACCOUNT, second.id)).toBe("accepted");
    expect(statusOf(second.id)).toBe("CANCELLED");
    expect(operations.cancel(ACCOUNT, first.id)).toBe("accepted");
    expect(operations.cancel(ACCOUNT, first.id)).toBe("accepted");
    await operations.idle();
    expect(statusOf(first.id)).toBe("CANCELLED");
    expect(operations.cancel(ACCOUNT, first.id)).toBe("terminal");
    expect(operations.cancel("mallory" as AccountId, first.id)).toBe("not_found");
  });

  test("are never published once a cancel was accepted", async () => {
    const finish = Promise.withResolvers<void>();
    const seen: string[] = [];
    const tidy = async () => void seen.push("tidied");
    const operations = operationsOf(() => async () => {
      await finish.promise;
      return done(tidy, () => seen.push("kept"));
    });
    const { id } = await spawn(operations);
    await executing(id);
    operations.cancel(ACCOUNT, id);
    finish.resolve();
    await operations.idle();
    expect(statusOf(id)).toBe("CANCELLED");
    expect(seen).toEqual(["tidied"]);
  });

  test("of one account wait in a queue of limited length", async () => {
    await using operations = operationsOf(() => untilAborted);
    const running = await spawn(operations);
    await executing(running.id);
    for (let index = 0; index < 3; index++) await spawn(operations);
    expect(await throwing(spawn(operations))).toThrow("waiting already");
    expect(listOperationsSync(db, ACCOUNT, { limit: 10, offset: 0 })).toHaveLength(4);
  });

  test("end FAILED when they are too large for the host, or when it has no machines", async () => {
    const tooLarge = operationsOf(succeed, { scheduler: new Scheduler({ memoryBytes: 0, vcpus: 0 }, Date.now) });
    const large = await spawn(tooLarge);
    await tooLarge.idle();
    expect(getOperation(db, ACCOUNT, large.id)).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    const noMachines = operationsOf(succeed, {
      machinesReady: () => Promise.reject(new ApiError("unavailable", "no VMM may be used")),
    });
    const { id } = await spawn(noMachines);
    await noMachines.idle();
    expect(getOperation(db, ACCOUNT, id)).toMatchObject({ status: "FAILED", startedAt: null });
  });
});

describe("operations on a host without machines", () => {
  test("stay PENDING until there are machines, even after their admission", async () => {
    const back = Promise.withResolvers<void>();
    let asked = 0;
    const machinesReady = () => (++asked === 1 ? Promise.resolve() : back.promise);
    await using operations = operationsOf(succeed, { machinesReady });
    const { id } = await spawn(operations);
    await until("machines are asked for again", () => asked === 2);
    expect(statusOf(id)).toBe("PENDING");
    back.resolve();
    await operations.waitForEnd(id, 5000, new AbortController().signal);
    expect(statusOf(id)).toBe("SUCCESS");
  });

  test("can be cancelled while they wait, and stay PENDING over a stop", async () => {
    const machinesReady = (signal: AbortSignal) => whenAborted(new Promise<void>(() => undefined), signal);
    const operations = operationsOf(succeed, { machinesReady });
    const { id: first } = await spawn(operations);
    const { id: second } = await spawn(operations);
    expect(operations.cancel(ACCOUNT, first)).toBe("accepted");
    await operations.waitForEnd(first, 5000, new AbortController().signal);
    await operations[Symbol.asyncDispose]();
    expect([first, second].map((id) => statusOf(id))).toEqual(["CANCELLED", "PENDING"]);
  });
});

describe("events of operations", () => {
  const operation = (id: OperationId) => ({ id, accountId: ACCOUNT, kind: "instance" });
  function heard(operations: Operations): OperationChange[] {
    const events: OperationChange[] = [];
    operations.changes.subscribe((event) => events.push(event));
    return events;
  }

  test("report each end once, after the row records it and before resources are disposed of", async () => {
    const tidied = Promise.withResolvers<void>();
    const metrics = createMetrics();
    const operations = operationsOf(() => async () => done(() => tidied.promise), { metrics });
    const events = heard(operations);
    const statuses: unknown[] = [];
    operations.changes.subscribe(({ operation }) => statuses.push(statusOf(operation.id)));
    const { id } = await spawn(operations);
    await operations.waitForEnd(id, 5000, new AbortController().signal);
    tidied.resolve();
    await operations.idle();
    expect(events).toEqual([
      { type: "accepted", operation: operation(id) },
      { type: "started", operation: operation(id) },
      { type: "ended", operation: operation(id), status: "SUCCESS", error: null, phases: expect.any(Array) },
    ] as OperationChange[]);
    expect(statuses).toEqual(["PENDING", "EXECUTING", "SUCCESS"]);
    const text = await metrics.registry.render();
    expect(text).toContain('coppice_operations_ended_total{kind="instance",state="success"} 1\n');
  });

  test("report failures, cancels, and operations that a stop leaves to the next start", async () => {
    const operations = operationsOf(() => untilAborted);
    const events = heard(operations);
    const ran = await spawn(operations);
    const cancelled = await spawn(operations);
    const waited = await spawn(operations);
    await executing(ran.id);
    operations.cancel(ACCOUNT, cancelled.id);
    await operations[Symbol.asyncDispose]();
    const changesOf = (id: OperationId) =>
      events
        .filter((event) => event.operation.id === id)
        .map((event) => (event.type === "ended" ? [event.status, event.error?.error] : event.type));
    expect(changesOf(ran.id)).toEqual(["accepted", "started", ["FAILED", "unavailable"]]);
    expect(changesOf(cancelled.id)).toEqual(["accepted", ["CANCELLED", undefined]]);
    expect(changesOf(waited.id)).toEqual(["accepted", "postponed"]);
  });

  test("change nothing when a subscriber fails on them", async () => {
    const operations = operationsOf(succeed);
    operations.changes.subscribe(() => {
      throw new Error("not taken");
    });
    const events = heard(operations);
    const { id } = await spawn(operations);
    await operations.idle();
    expect(statusOf(id)).toBe("SUCCESS");
    expect(events.map(({ type }) => type)).toEqual(["accepted", "started", "ended"]);
  });
});

describe("a failure around an operation", () => {
  test("of the disposal leaves the operation SUCCESS", async () => {
    const operations = operationsOf(() => async () => done(() => Promise.reject(new Error("busy"))));
    const { id } = await spawn(operations);
    await operations.idle();
    expect(statusOf(id)).toBe("SUCCESS");
  });

  test("of the publication removes the result, and the operation ends FAILED", async () => {
    const seen: string[] = [];
    const operations = operationsOf(() => async () => {
      db.orm.run(
        "CREATE TRIGGER broken BEFORE UPDATE ON operations WHEN NEW.status = 'SUCCESS' BEGIN SELECT RAISE(FAIL, 'no'); END",
      );
      return done(
        async () => void seen.push("tidied"),
        () => seen.push("kept"),
      );
    });
    const { id } = await spawn(operations);
    await operations.idle();
    expect(getOperation(db, ACCOUNT, id)).toMatchObject({ status: "FAILED", error: { error: "internal_error" } });
    expect(seen).toEqual(["tidied"]);
  });

  test("that the database cannot record still takes the operation off the list", async () => {
    const operations = operationsOf(() => async () => {
      db[Symbol.dispose]();
      throw new Error("gone");
    });
    await spawn(operations);
    await spawn(operations);
    while (operations.counts().every(({ state, count }) => state !== "executing" || count === 0)) await ownTurn();
    await operations[Symbol.asyncDispose]();
    expect(operations.counts().every(({ count }) => count === 0)).toBe(true);
    db = openDatabase(store.databasePath);
  });

  test("does not occur when callers arrive and leave: they leave no listener behind", async () => {
    const stats = { cpuTimeMs: 0, memoryBytes: 0, memoryPeakBytes: 0, cacheBytes: 0, pids: 0 };
    const source = { stats: async () => stats };
    const claim = () => ({ [Symbol.dispose]: () => undefined });
    const instances = {
      claim,
      stats: (_id: OperationId, signal: AbortSignal) => samples(source, 1000, signal),
    };
    const operations = operationsOf(() => untilAborted, { instances });
    const { id } = await spawn(operations);
    await executing(id);
    const left = new AbortController();
    const polls = Array.from({ length: 100 }, () => operations.waitForEnd(id, 60_000, left.signal));
    expect(operations.waitersCount).toBe(100);
    const looks = operations.stats(id, left.signal)?.[Symbol.asyncIterator]();
    expect((await looks?.next())?.done).toBe(false);
    expect(operations.waitersCount).toBe(101);
    left.abort();
    await Promise.all(polls);
    expect((await looks?.next())?.done).toBe(true);
    await operations.waitForEnd(id, 1, new AbortController().signal);
    expect(operations.waitersCount).toBe(0);
    const waiting = operations.waitForEnd(id, 60_000, new AbortController().signal);
    const following = operations.stats(id, new AbortController().signal)?.[Symbol.asyncIterator]();
    await following?.next();
    operations.cancel(ACCOUNT, id);
    await waiting;
    expect((await following?.next())?.done).toBe(true);
    expect(operations.waitersCount).toBe(0);
    await operations.idle();
  });
});

describe("a stop and a restart", () => {
  test("end running operations as FAILED, keep waiting ones, and run them", async () => {
    const operations = operationsOf(() => untilAborted);
    const ran = await spawn(operations);
    const waited = await spawn(operations);
    await executing(ran.id);
    await operations[Symbol.asyncDispose]();
    expect(getOperation(db, ACCOUNT, ran.id)).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    expect(statusOf(waited.id)).toBe("PENDING");
    using erased = spyOn(db, "eraseSoon");
    expect(await throwing(spawn(operations))).toThrow("stopping");
    const after = operationsOf(succeed);
    after.recover();
    await after.idle();
    expect(statusOf(waited.id)).toBe("SUCCESS");
    expect(erased).toHaveBeenCalledTimes(1);
  });

  test("after a crash: running operations are FAILED, or CANCELLED where that was accepted; those without their credentials are FAILED", async () => {
    const before = operationsOf(() => untilAborted, { machinesReady: () => new Promise(() => undefined) });
    const ran = await spawn(before);
    const cancelled = await spawn(before);
    const secret = await before.submit(ACCOUNT, KINDS.image_import, {
      source: { kind: "registry", reference: "registry.example.net/a:1" },
      credentials: { username: "u", password: "canary-password" },
      ...{ tag: null, timeoutSeconds: 1, reuse: false, keepTags: false },
    });
    for (const { id } of [ran, cancelled]) startOperation(db, id, Date.now());
    before.cancel(ACCOUNT, cancelled.id);
    using erased = spyOn(db, "eraseSoon");
    const after = operationsOf(succeed);
    after.recover();
    expect(erased).toHaveBeenCalledTimes(3);
    await after.idle();
    expect([ran, cancelled, secret].map(({ id }) => statusOf(id))).toEqual(["FAILED", "CANCELLED", "FAILED"]);
    expect(await Bun.file(store.databasePath).text()).not.toContain("canary-password");
  });
});
