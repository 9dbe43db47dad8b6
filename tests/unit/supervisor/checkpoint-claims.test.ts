import { afterEach, beforeEach, expect, test } from "bun:test";
import type { Database } from "../../../src/db/database.ts";
import { getOperation } from "../../../src/db/operations.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { ApiError } from "../../../src/domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../../src/domain/ids.ts";
import { EventLogs } from "../../../src/storage/events/event-logs.ts";
import type { DataLayout } from "../../../src/storage/layout.ts";
import type { RunningInstance } from "../../../src/supervisor/instance/running-instance.ts";
import { RunningInstances } from "../../../src/supervisor/instance/running-instances.ts";
import { TimeLimit } from "../../../src/supervisor/instance/time-limit.ts";
import { checkpointKind } from "../../../src/supervisor/kinds/checkpoint.ts";
import { Scheduler } from "../../../src/supervisor/operations/scheduler.ts";
import { type Prepared, prepared } from "../../../src/supervisor/operations/work.ts";
import { wallClock } from "../../../src/system/wall-clock.ts";
import { failureOf } from "../../support/failures.ts";
import { quietNetwork } from "../../support/instance-network.ts";
import {
  type OperationsStore,
  operationsStore,
  type Preparation,
  type TestOptions,
  testOperations,
} from "../../support/operations.ts";
import { until } from "../../support/waiting.ts";

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

const operationsOf = (run: () => Preparation, more: TestOptions = {}) => testOperations({ db, layout }, run, more);
const done = (): Prepared => prepared(new AsyncDisposableStack(), { result: {} }, () => undefined);
const succeed = (): Preparation => async () => done();
const statusOf = (id: OperationId) => getOperation(db, ACCOUNT, id)?.status;

const INSTANCE = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c16" as OperationId;
const CHECKPOINT = { instanceId: INSTANCE, imageId: IMAGE, tag: null, timeoutSeconds: 9 };
const running = { isRunning: true, listen: () => undefined } as unknown as RunningInstance;

const live = (): RunningInstances => {
  const instances = new RunningInstances();
  const events = new EventLogs(layout, new Accounts(), wallClock()).open(INSTANCE);
  instances
    .open(INSTANCE, { limit: new TimeLimit(1000), hostname: "h", events, network: quietNetwork() })
    .enter(running);
  return instances;
};

test("a checkpoint does not wait for the budget, and is the only one of its instance until its end is reported", async () => {
  const gate = Promise.withResolvers<Prepared>();
  const scheduler = new Scheduler({ memoryBytes: 0, vcpus: 0 }, Date.now);
  await using operations = operationsOf(() => () => gate.promise, { instances: live(), scheduler });
  const { id } = await operations.submit(ACCOUNT, checkpointKind, CHECKPOINT);
  await until("it executes", () => statusOf(id) === "EXECUTING");
  const second = operations.submit(ACCOUNT, checkpointKind, CHECKPOINT);
  expect(await failureOf(second)).toMatchObject({ code: "conflict" });
  const next = Promise.withResolvers<{ readonly id: OperationId }>();
  using subscription = operations.changes.subscribe(({ type }) => {
    if (type !== "ended") return;
    subscription[Symbol.dispose]();
    operations.submit(ACCOUNT, checkpointKind, CHECKPOINT).then(next.resolve, next.reject);
  });
  gate.resolve(done());
  expect((await next.promise).id).not.toBe(id);
  await operations.idle();
});

test("a checkpoint that was not accepted does not block another", async () => {
  const instances = live();
  await using operations = operationsOf(succeed, { instances });
  const gone = { ...CHECKPOINT, imageId: crypto.randomUUID() as ImageId };
  expect(await failureOf(operations.submit(ACCOUNT, checkpointKind, gone))).toMatchObject({ code: "not_found" });
  const { id } = await operations.submit(ACCOUNT, checkpointKind, CHECKPOINT);
  await operations.idle();
  expect(statusOf(id)).toBe("SUCCESS");
});

test("a checkpoint of an instance that does not run is refused", async () => {
  await using operations = operationsOf(succeed);
  const error = await operations.submit(ACCOUNT, checkpointKind, CHECKPOINT).catch((reason: unknown) => reason);
  expect((error as ApiError).code).toBe("conflict");
});

test("a checkpoint that a former daemon accepted is the only one of its instance, too", async () => {
  const never = () => new Promise<void>(() => undefined);
  const former = operationsOf(succeed, { instances: live(), machinesReady: never });
  const { id } = await former.submit(ACCOUNT, checkpointKind, CHECKPOINT);
  // As after a crash: nothing of the former daemon is disposed of.
  const gate = Promise.withResolvers<Prepared>();
  const instances = live();
  await using operations = operationsOf(() => () => gate.promise, { instances });
  operations.recover();
  await until("it executes", () => statusOf(id) === "EXECUTING");
  const second = operations.submit(ACCOUNT, checkpointKind, CHECKPOINT);
  expect(await failureOf(second)).toMatchObject({ code: "conflict" });
  gate.resolve(done());
  await until("it ends", () => statusOf(id) === "SUCCESS");
  using _free = instances.claim(INSTANCE, "fork");
  await operations.idle();
});
