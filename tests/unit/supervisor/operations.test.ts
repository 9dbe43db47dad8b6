import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Database, openDatabase } from "../../../src/db/database.ts";
import { getOperation, listOperations, startOperation } from "../../../src/db/operations.ts";
import { publishRun } from "../../../src/db/publish.ts";
import { accounts, images, layers } from "../../../src/db/schema.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../../src/domain/ids.ts";
import { silentLog } from "../../../src/log.ts";
import { createMetrics } from "../../../src/metrics.ts";
import { Operations, type OperationsOptions, type Work } from "../../../src/supervisor/operations.ts";
import type { InstanceSubmission } from "../../../src/supervisor/ports.ts";
import { Scheduler } from "../../../src/supervisor/scheduler.ts";
import { someLayer } from "../../support/database.ts";

const ACCOUNT = "alice" as AccountId;
const COST = { memoryBytes: 1, vcpus: 1 };
const IMAGE = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as ImageId;
const SUBMISSION = { imageId: IMAGE, files: [] as InstanceSubmission["files"] } as InstanceSubmission;

let directory: string;
let db: Database;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-operations-"));
  db = openDatabase(join(directory, "db"));
  const layer = { ...someLayer(), createdAt: 1 };
  db.orm.insert(accounts).values({ id: ACCOUNT, createdAt: 1 }).run();
  db.orm.insert(layers).values(layer).run();
  db.orm.insert(images).values({ id: IMAGE, accountId: ACCOUNT, layerId: layer.id, sizeBytes: 1, createdAt: 1 }).run();
});
afterEach(async () => {
  db[Symbol.dispose]();
  await rm(directory, { recursive: true });
});

type Run = Work["run"];

/** Operations whose work is `run`, on one place. */
function operationsOf(run: (id: OperationId) => Run, more: Partial<OperationsOptions> = {}): Operations {
  const work = (id: OperationId): Work => ({ cost: COST, run: run(id) });
  return new Operations({
    db,
    log: silentLog,
    clock: Date.now,
    metrics: createMetrics(),
    scheduler: new Scheduler({ memoryBytes: 1, vcpus: 1 }, Date.now),
    workers: { instance: work, importImage: work },
    requireSpace: () => undefined,
    readiness: () => ({ ready: true, isolation: "vm", reason: "", checks: [] }),
    machinesKnown: () => Promise.resolve(),
    queueCountMax: 3,
    ...more,
  });
}
const succeed =
  (id: OperationId): Run =>
  async ({ onPublished }) => {
    const published = publishRun(db, { operationId: id, result: { exit_code: 0 }, now: Date.now() });
    if (published) onPublished();
    return published;
  };
const untilAborted: Run = ({ signal }) =>
  new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
const statusOf = (id: OperationId) => getOperation(db, ACCOUNT, id)?.status;
async function executing(id: OperationId): Promise<void> {
  while (statusOf(id) !== "EXECUTING") await Bun.sleep(1);
}

describe("operations", () => {
  test("run to SUCCESS, and waiting for the end sees it", async () => {
    const operations = operationsOf(succeed);
    const { id } = operations.submitInstance(ACCOUNT, SUBMISSION);
    expect(statusOf(id)).toBe("PENDING");
    await operations.waitForEnd(id, 5000, new AbortController().signal);
    expect(getOperation(db, ACCOUNT, id)).toMatchObject({ status: "SUCCESS", result: { exit_code: 0 } });
  });

  test("are over for who waits before they have been tidied away", async () => {
    const tidied = Promise.withResolvers<void>();
    const operations = operationsOf((id) => async (context) => {
      const published = await succeed(id)(context);
      await tidied.promise;
      return published;
    });
    const { id } = operations.submitInstance(ACCOUNT, SUBMISSION);
    await operations.waitForEnd(id, 5000, new AbortController().signal);
    expect(statusOf(id)).toBe("SUCCESS");
    expect(operations.counts().some(({ count }) => count > 0)).toBe(true);
    tidied.resolve();
    await operations.idle();
  });

  test("that throw end FAILED: an ApiError is told, anything else is not", async () => {
    const errors = [new ApiError("unavailable", "the VM died"), new Error("secret path")];
    const operations = operationsOf(() => async () => {
      throw errors.shift();
    });
    const told = operations.submitInstance(ACCOUNT, SUBMISSION);
    const hidden = operations.submitInstance(ACCOUNT, SUBMISSION);
    await operations.idle();
    expect(getOperation(db, ACCOUNT, told.id)?.error).toMatchObject({ error: "unavailable", message: "the VM died" });
    const body = JSON.stringify(getOperation(db, ACCOUNT, hidden.id)?.error);
    expect(body).toContain("internal_error");
    expect(body).not.toContain("secret");
  });

  test("are cancelled while they wait and while they run; never after the end", async () => {
    const operations = operationsOf(() => untilAborted);
    const first = operations.submitInstance(ACCOUNT, SUBMISSION);
    const second = operations.submitInstance(ACCOUNT, SUBMISSION);
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

  test("whose cancel was accepted are never published", async () => {
    const finish = Promise.withResolvers<void>();
    const operations = operationsOf((id) => async (context) => {
      await finish.promise;
      return await succeed(id)(context);
    });
    const { id } = operations.submitInstance(ACCOUNT, SUBMISSION);
    await executing(id);
    operations.cancel(ACCOUNT, id);
    finish.resolve();
    await operations.idle();
    expect(statusOf(id)).toBe("CANCELLED");
  });

  test("of one account wait in a bounded queue", async () => {
    await using operations = operationsOf(() => untilAborted);
    const running = operations.submitInstance(ACCOUNT, SUBMISSION);
    await executing(running.id);
    for (let index = 0; index < 3; index++) operations.submitInstance(ACCOUNT, SUBMISSION);
    expect(() => operations.submitInstance(ACCOUNT, SUBMISSION)).toThrow("waiting already");
    expect(listOperations(db, ACCOUNT, { limit: 10, offset: 0 })).toHaveLength(4);
  });

  test("that no host could hold, or that no machine is there for, end FAILED", async () => {
    const tooLarge = operationsOf(succeed, { scheduler: new Scheduler({ memoryBytes: 0, vcpus: 0 }, Date.now) });
    const large = tooLarge.submitInstance(ACCOUNT, SUBMISSION);
    await tooLarge.idle();
    expect(getOperation(db, ACCOUNT, large.id)).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    const noMachines = operationsOf(succeed, {
      machinesKnown: () => Promise.reject(new ApiError("unavailable", "no VMM may be used")),
    });
    const { id } = noMachines.submitInstance(ACCOUNT, SUBMISSION);
    await noMachines.idle();
    expect(getOperation(db, ACCOUNT, id)).toMatchObject({ status: "FAILED", startedAt: null });
  });
});

describe("a stop and a restart", () => {
  test("end what ran as FAILED, keep what waited, and run it", async () => {
    const operations = operationsOf(() => untilAborted);
    const ran = operations.submitInstance(ACCOUNT, SUBMISSION);
    const waited = operations.submitInstance(ACCOUNT, SUBMISSION);
    await executing(ran.id);
    await operations[Symbol.asyncDispose]();
    expect(getOperation(db, ACCOUNT, ran.id)).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    expect(statusOf(waited.id)).toBe("PENDING");
    expect(() => operations.submitInstance(ACCOUNT, SUBMISSION)).toThrow("stopping");
    const after = operationsOf(succeed);
    after.recover();
    await after.idle();
    expect(statusOf(waited.id)).toBe("SUCCESS");
  });

  test("after a crash: FAILED, CANCELLED where that was accepted, FAILED where credentials are gone", async () => {
    const before = operationsOf(() => untilAborted, { machinesKnown: () => new Promise(() => undefined) });
    const ran = before.submitInstance(ACCOUNT, SUBMISSION);
    const cancelled = before.submitInstance(ACCOUNT, SUBMISSION);
    const secret = before.submitImport(ACCOUNT, {
      registry: "registry.example.net/a:1",
      credentials: { username: "u", password: "canary-password" },
      tag: null,
      timeoutSeconds: 1,
    });
    for (const { id } of [ran, cancelled]) startOperation(db, id, Date.now());
    before.cancel(ACCOUNT, cancelled.id);
    const after = operationsOf(succeed);
    after.recover();
    await after.idle();
    expect([ran, cancelled, secret].map(({ id }) => statusOf(id))).toEqual(["FAILED", "CANCELLED", "FAILED"]);
    expect(await Bun.file(join(directory, "db")).text()).not.toContain("canary-password");
  });
});
