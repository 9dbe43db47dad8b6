import { afterEach, beforeEach, expect, test } from "bun:test";
import { getOperation } from "../../../../src/db/operations.ts";
import type { AccountId, ImageId, OperationId, SandboxId } from "../../../../src/domain/ids.ts";
import { silentLog } from "../../../../src/log.ts";
import { OperatorDesk } from "../../../../src/service/operator/desk.ts";
import { LayerStore } from "../../../../src/storage/layers/layer-store.ts";
import { RunningInstances } from "../../../../src/supervisor/instance/running-instances.ts";
import { KINDS } from "../../../../src/supervisor/kinds/kinds.ts";
import { STOPPED_WITH_ALL } from "../../../../src/supervisor/operations/failures.ts";
import type { Operations } from "../../../../src/supervisor/operations/operations.ts";
import { Scheduler } from "../../../../src/supervisor/operations/scheduler.ts";
import { throwing } from "../../../support/failures.ts";
import {
  type OperationsStore,
  operationsStore,
  type Preparation,
  SUBMISSION,
  testOperations,
} from "../../../support/operations.ts";
import { turns, until } from "../../../support/waiting.ts";

const ACCOUNT = "alice" as AccountId;
const IMAGE = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as ImageId;

let store: OperationsStore;
beforeEach(async () => {
  store = await operationsStore(ACCOUNT, IMAGE);
});
afterEach(async () => {
  store.db[Symbol.dispose]();
  await store[Symbol.asyncDispose]();
});

const abortOf = ({ signal }: { readonly signal: AbortSignal }) =>
  new Promise<never>((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
const untilAborted: Preparation = (context) => abortOf(context);
const spawn = (operations: Operations) => operations.submit(ACCOUNT, KINDS.instance, SUBMISSION);
const statusOf = (id: OperationId) => getOperation(store.db, ACCOUNT, id)?.status;
const executes = (id: OperationId) => until("it executes", () => statusOf(id) === "EXECUTING");

/** The options of a desk that removes expired objects. */
function reclaiming() {
  const { db, layout } = store;
  const layers = new LayerStore({ layout, chainOf: () => [] });
  const ages = { filesTtlMs: null, untaggedTtlMs: null, memoryTtlMs: 86_400_000 };
  return { db, layout, layers, log: silentLog, clock: Date.now, ...ages };
}

/** A desk that commands `operations`. */
function deskOf(
  operations: Operations,
  instances: Pick<RunningInstances, "atStop"> = new RunningInstances(),
): OperatorDesk {
  const desk = new OperatorDesk({ ...reclaiming(), version: "1.2.3", leave: "always", cgroups: { isInUnit: false } });
  desk.open({ operations, instances, listener: { stop: async () => undefined } });
  return desk;
}

test("work waits while the operator holds it, and what runs continues", async () => {
  const release = Promise.withResolvers<never>();
  await using operations = testOperations(
    store,
    () =>
      ({ signal }) =>
        Promise.race([release.promise, untilAborted({ signal } as never, {})]),
  );
  const desk = deskOf(operations);
  const { id: running } = await spawn(operations);
  await executes(running);
  const held = await desk.hold();
  const { id: waiting } = await spawn(operations);
  release.reject(new Error("it ends"));
  await operations.waitForEnd(running, 5000, new AbortController().signal);
  // There is room for it now.
  expect([running, waiting].map(statusOf)).toEqual(["FAILED", "PENDING"]);
  expect(throwingNow(() => operations.begin(ACCOUNT, KINDS.instance, []))).toBe("the operator lets no work begin now");
  held[Symbol.dispose]();
  await operations.waitForEnd(waiting, 5000, new AbortController().signal);
  expect(statusOf(waiting)).toBe("FAILED");
});

test("an operation that waits for the operator can be cancelled, and stays PENDING over a stop", async () => {
  const operations = testOperations(store, () => untilAborted);
  using _held = await deskOf(operations).hold();
  const [{ id: first }, { id: second }] = [await spawn(operations), await spawn(operations)];
  expect(operations.cancel(ACCOUNT, first)).toBe("accepted");
  await operations.waitForEnd(first, 5000, new AbortController().signal);
  await operations[Symbol.asyncDispose]();
  expect([first, second].map(statusOf)).toEqual(["CANCELLED", "PENDING"]);
});

test("an end of everything gives the reason, leaves waiting work, and lets nothing begin afterwards", async () => {
  const operations = testOperations(store, () => untilAborted);
  const desk = deskOf(operations);
  const { id: running } = await spawn(operations);
  await executes(running);
  const { id: waiting } = await spawn(operations);
  expect(await desk.running()).toEqual({
    ...{ version: "1.2.3", pid: process.pid, leavesInstances: true },
    operations: [{ id: running, accountId: ACCOUNT, kind: "instance", sandbox: null }],
  });
  await desk.endAll("operator");
  expect([running, waiting].map(statusOf)).toEqual(["FAILED", "PENDING"]);
  expect(getOperation(store.db, ACCOUNT, running)?.error).toEqual(STOPPED_WITH_ALL.body());
  expect((await desk.running()).operations).toEqual([]);
  expect(await throwing(spawn(operations))).toThrow("the service is stopping");
  await operations[Symbol.asyncDispose]();
});

test("a stop that leaves instances ends the others, waits for one that completes, and leaves rows and logs alone", async () => {
  const completes = Promise.withResolvers<never>();
  const started: OperationId[] = [];
  const operations = testOperations(
    store,
    (id) => async (context) => {
      started.push(id);
      return await Promise.race([
        started.length === 3 ? completes.promise : new Promise<never>(() => undefined),
        abortOf(context),
      ]);
    },
    { scheduler: new Scheduler({ memoryBytes: 4, vcpus: 4 }, Date.now) },
  );
  for (let count = 1; count <= 4; count++) {
    await spawn(operations);
    await until("it has started", () => started.length === count);
  }
  const { id: waiting } = await spawn(operations);
  const stops = ["continues", "ends", "completes", "begins_again"] as const;
  let asked = 0;
  const left = operations.leave(({ id }) => {
    asked += 1;
    return stops[started.indexOf(id)] ?? "ends";
  });
  await until("the second has ended", () => statusOf(started[1] as OperationId) === "FAILED");
  const askedBefore = asked;
  completes.reject(new Error("it ends"));
  expect(await left).toBe(1);
  expect(asked).toBeGreaterThan(askedBefore);
  expect([...started, waiting].map(statusOf)).toEqual(["EXECUTING", "FAILED", "FAILED", "EXECUTING", "PENDING"]);
  expect(await throwing(spawn(operations))).toThrow("the service is stopping");
  await operations[Symbol.asyncDispose]();
});

test("a stop that leaves instances leaves none where none runs", async () => {
  await using operations = testOperations(store, () => untilAborted);
  expect(await operations.leave(() => "continues")).toBeNull();
});

test("the first of two stops counts, and one that would end more is refused", async () => {
  await using operations = testOperations(store, () => untilAborted);
  const desk = deskOf(operations);
  const plain = { all: false, awaitsSignal: false };
  await Promise.all([desk.stop(plain), desk.stop({ all: false, awaitsSignal: true })]);
  expect(await throwing(desk.stop({ all: true, awaitsSignal: false }))).toThrow("leaves its instances");
  expect(await desk.stopRequested).toEqual(plain);
});

test("commands wait until operations have been recovered", async () => {
  await using operations = testOperations(store, () => untilAborted);
  const desk = new OperatorDesk({ ...reclaiming(), version: "1.2.3", leave: "in_unit", cgroups: { isInUnit: false } });
  let answered = false;
  const asked = desk.running().then(() => {
    answered = true;
  });
  await turns();
  expect(answered).toBe(false);
  desk.open({ operations, instances: new RunningInstances(), listener: { stop: async () => undefined } });
  await asked;
});

function throwingNow(work: () => unknown): string {
  try {
    work();
  } catch (error) {
    return (error as Error).message;
  }
  return "";
}

test("a stop leaves no machine of a sandbox that has ended, nor one whose operation was cancelled", async () => {
  const gone = Promise.withResolvers<void>();
  const ending: Preparation = async (context) => {
    await abortOf(context).catch(() => undefined);
    await gone.promise;
    throw context.signal.reason;
  };
  const scheduler = new Scheduler({ memoryBytes: 9, vcpus: 9 }, Date.now);
  const operations = testOperations(store, () => ending, { scheduler });
  const desk = deskOf(operations, { atStop: () => "continues" });
  const sandboxId = Bun.randomUUIDv7() as SandboxId;
  const run = { sandboxId, hostname: "box", imageId: IMAGE, files: [], network: null, resources: SUBMISSION.resources };
  const [{ id: sandbox }, { id: cancelled }, { id: running }] = [
    await operations.submit(ACCOUNT, KINDS.sandbox, run),
    await spawn(operations),
    await spawn(operations),
  ];
  for (const id of [sandbox, cancelled, running]) await executes(id);
  operations.cancel(ACCOUNT, cancelled);
  const left = desk.leave();
  gone.resolve();
  expect(await left).toBe(1);
  expect([sandbox, cancelled, running].map(statusOf)).toEqual(["FAILED", "CANCELLED", "EXECUTING"]);
  await operations[Symbol.asyncDispose]();
});
