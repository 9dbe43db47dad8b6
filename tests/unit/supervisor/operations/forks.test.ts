import { expect, test } from "bun:test";
import { getOperation } from "../../../../src/db/operations.ts";
import type { AccountId, ImageId, OperationId } from "../../../../src/domain/ids.ts";
import { KINDS } from "../../../../src/supervisor/kinds/kinds.ts";
import { Scheduler } from "../../../../src/supervisor/operations/scheduler.ts";
import type { Preparation } from "../../../support/operations.ts";
import { operationsStore, PLACE, SUBMISSION, testOperations } from "../../../support/operations.ts";
import { until } from "../../../support/waiting.ts";

const ACCOUNT = "alice" as AccountId;
const IMAGE = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as ImageId;
const untilAborted: Preparation = ({ signal }) =>
  new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

test("operations that begin with machines begin together with their shares of the budget, or not at all", async () => {
  await using store = await operationsStore(ACCOUNT, IMAGE);
  const { layout } = store;
  using db = store.db;
  const statusOf = (id: OperationId) => getOperation(db, ACCOUNT, id)?.status;
  const executing = (id: OperationId) => until("it executes", () => statusOf(id) === "EXECUTING");
  const scheduler = new Scheduler({ memoryBytes: 2, vcpus: 2 }, Date.now);
  const operations = testOperations({ db, layout }, () => untilAborted, { scheduler });
  const { id: parentId } = await operations.submit(ACCOUNT, KINDS.instance, SUBMISSION);
  await executing(parentId);
  operations.cancel(ACCOUNT, parentId);
  await operations.idle();
  const forks = () =>
    (scheduler.admitNow(ACCOUNT, [PLACE, PLACE]) ?? []).map((ticket) => {
      return {
        id: Bun.randomUUIDv7() as OperationId,
        submission: SUBMISSION,
        fork: { parentId, atEvent: 4 },
        ticket,
      };
    });
  const failing = forks();
  const undone = () => {
    throw new Error("no place");
  };
  const last = failing.map((fork, index) => (index === 1 ? { ...fork, also: undone } : fork));
  expect(() => operations.begin(ACCOUNT, KINDS.instance, last)).toThrow("no place");
  expect(failing.map(({ id }) => statusOf(id))).toEqual([undefined, undefined]);
  for (const { ticket } of failing) ticket[Symbol.dispose]();

  const begun = forks();
  operations.begin(ACCOUNT, KINDS.instance, begun);
  for (const { id } of begun) await executing(id);
  expect(getOperation(db, ACCOUNT, begun[0]?.id as OperationId)).toMatchObject({ parentId, forkedAtEvent: 4 });
  expect(scheduler.used).toEqual({ memoryBytes: 2, vcpus: 2 });
  for (const { id } of begun) operations.cancel(ACCOUNT, id);
  await operations.idle();
  expect(scheduler.used).toEqual({ memoryBytes: 0, vcpus: 0 });
});
