import { afterEach, beforeEach, expect, test } from "bun:test";
import { getOperation } from "../../../src/db/operations.ts";
import { operationRequest } from "../../../src/db/requests.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../../src/domain/ids.ts";
import { Spid } from "../../../src/domain/log-event.ts";
import { KIND_FACTS, type OperationKind } from "../../../src/domain/operation.ts";
import { createMetrics } from "../../../src/metrics.ts";
import { EventLogs } from "../../../src/storage/events/event-logs.ts";
import { KINDS } from "../../../src/supervisor/kinds/kinds.ts";
import type { OperationChange } from "../../../src/supervisor/operations/changes.ts";
import { atWork, type Credentials, type Kind } from "../../../src/supervisor/operations/kind.ts";
import type { Operations } from "../../../src/supervisor/operations/operations.ts";
import type { OperationsOptions } from "../../../src/supervisor/operations/options.ts";
import { keptRequest } from "../../../src/supervisor/operations/requests.ts";
import { prepared } from "../../../src/supervisor/operations/work.ts";
import { wallClock } from "../../../src/system/wall-clock.ts";
import { failureOf } from "../../support/failures.ts";
import { type OperationsStore, operationsStore, PLACE, testKinds, testOperations } from "../../support/operations.ts";
import { until } from "../../support/waiting.ts";

/*
 * A kind that the product does not have: one object, which stands for the file of a new kind. Everything else belongs to the
 * product, and knows the kind only from the tables.
 */

interface Echo {
  readonly text: string;
  readonly secret: string;
  readonly credentials: Credentials | null;
}

/** Dependencies of the worker: it records its requests here, and ends with `echoed`. */
interface EchoTools {
  readonly requests: Echo[];
  readonly reserved: Set<string>;
  readonly echoed: Promise<void>;
}

const FACTS = { label: "Echo", noun: "an echo", metric: "echo" };
const echoKind: Kind<Echo, Echo, { readonly kind: "echo"; readonly text: string }, EchoTools> = {
  name: "echo" as OperationKind,
  store: ({ text, secret, credentials }) => ({
    row: { body: { text }, secrets: { secret }, sizeBytes: text.length },
    stdin: null,
    credentials,
    imageId: null,
  }),
  read: ({ body, secrets, credentials }) => ({ ...body, ...secrets, credentials }) as Echo,
  kept: ({ body }) => ({ kind: "echo", text: (body as Echo).text }),
  worker: ({ requests, reserved, echoed }) => ({
    cost: () => PLACE,
    reserve: ({ text }) => {
      if (reserved.has(text)) throw new ApiError("conflict", "there is such an echo");
      reserved.add(text);
      return { [Symbol.dispose]: () => void reserved.delete(text) };
    },
    prepare: async (_operation, request, { events, laps, signal }) => {
      requests.push(request);
      events.append(Spid.agent, "progress", { step: "echoing" });
      const aborted = new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
      await Promise.race([echoed, aborted]);
      laps.lap("copy");
      return prepared(new AsyncDisposableStack(), { result: { text: request.text } }, () => undefined);
    },
  }),
};

const ACCOUNT = "alice" as AccountId;
const ECHO: Echo = { text: "hello", secret: "canary-secret", credentials: null };
const soon = new AbortController().signal;

let store: OperationsStore;
beforeEach(async () => {
  store = await operationsStore(ACCOUNT, Bun.randomUUIDv7() as ImageId);
});
afterEach(async () => {
  store.db[Symbol.dispose]();
  await store[Symbol.asyncDispose]();
});

const rowOf = (id: OperationId) => getOperation(store.db, ACCOUNT, id);
const keptOf = (id: OperationId) => {
  const row = rowOf(id);
  return row === null ? null : keptRequest({ ...KINDS, echo: echoKind }, store.db, row);
};

/** Operations of the product's kinds and of the new one, whose work waits for `go`. */
function echoOperations(more: Partial<OperationsOptions> = {}) {
  const { promise: echoed, resolve: go } = Promise.withResolvers<void>();
  const tools: EchoTools = { requests: [], reserved: new Set(), echoed };
  const never = () => () => Promise.reject(new Error("not this kind"));
  const kinds = [...testKinds(never), atWork(echoKind, tools)];
  const metrics = createMetrics({ ...KIND_FACTS, echo: FACTS });
  const operations = testOperations(store, never, { kinds, metrics, ...more });
  const changes: OperationChange["type"][] = [];
  operations.changes.subscribe(({ type }) => changes.push(type));
  return { operations, metrics, changes, go, ...tools };
}

const executing = (operations: Operations, id: OperationId) =>
  until("it executes", () => {
    const { count } =
      operations.counts().find(({ kind, state }) => kind === echoKind.name && state === "executing") ?? {};
    return count === 1 && rowOf(id)?.status === "EXECUTING";
  });

test("a new kind runs from its submission to its end: events, changes, figures, and its kept request", async () => {
  const eventLogs = new EventLogs(store.layout, new Accounts(), wallClock());
  const { operations, metrics, changes, requests, go } = echoOperations({ eventLogs });
  const { id } = await operations.submit(ACCOUNT, echoKind, ECHO);
  await executing(operations, id);
  expect(requests).toEqual([ECHO]);
  go();
  await operations.waitForEnd(id, 10_000, soon);
  expect(rowOf(id)).toMatchObject({ kind: echoKind.name, status: "SUCCESS", result: { text: "hello" } });
  expect(changes).toEqual(["accepted", "started", "ended"]);
  expect(keptOf(id)).toEqual({ kind: "echo", text: "hello" });
  expect(operationRequest(store.db, id)?.secrets).toBeNull();
  using reader = eventLogs.read(ACCOUNT, id, -1, true);
  expect(JSON.stringify((await reader.next()).map(({ payload }) => String(payload)))).toContain("echoing");
  const figures = await metrics.registry.render();
  expect(figures).toContain('coppice_operations_ended_total{kind="echo",state="success"} 1');
  for (const phase of ["queue", "copy", "publish"]) {
    expect(figures).toContain(`coppice_echo_phase_seconds_count{phase="${phase}"} 1`);
  }
  expect(figures).toContain("Time of each step of an echo.");
  await operations.idle();
});

test("a new kind is cancelled, while it waits and while it runs, and releases the resources that its worker reserved", async () => {
  const { operations, reserved } = echoOperations();
  const { id } = await operations.submit(ACCOUNT, echoKind, ECHO);
  await executing(operations, id);
  expect(await failureOf(operations.submit(ACCOUNT, echoKind, ECHO))).toMatchObject({ code: "conflict" });
  const waiting = await operations.submit(ACCOUNT, echoKind, { ...ECHO, text: "next" });
  expect([...reserved]).toEqual(["hello", "next"]);
  for (const operation of [waiting, { id }]) expect(operations.cancel(ACCOUNT, operation.id)).toBe("accepted");
  await operations.idle();
  expect([waiting.id, id].map((each) => rowOf(each)?.status)).toEqual(["CANCELLED", "CANCELLED"]);
  expect(reserved.size).toBe(0);
});

test("a restart ends running operations and those with credentials, and runs the other waiting ones", async () => {
  const before = echoOperations();
  const ran = await before.operations.submit(ACCOUNT, echoKind, ECHO);
  await executing(before.operations, ran.id);
  const waited = await before.operations.submit(ACCOUNT, echoKind, { ...ECHO, text: "next" });
  const credentials = { username: "u", password: "canary-password" };
  const secret = await before.operations.submit(ACCOUNT, echoKind, { ...ECHO, text: "secret", credentials });
  expect(JSON.stringify(operationRequest(store.db, secret.id))).not.toContain("canary-password");
  // A killed process ends no operation: the next one opens the same rows.
  const after = echoOperations();
  after.operations.recover();
  after.go();
  await after.operations.idle();
  expect([ran, waited, secret].map(({ id }) => rowOf(id)?.status)).toEqual(["FAILED", "SUCCESS", "FAILED"]);
  expect(after.requests).toEqual([{ ...ECHO, text: "next" }]);
  expect(keptOf(ran.id)).toEqual({ kind: "echo", text: "hello" });
  await before.operations[Symbol.asyncDispose]();
});

test("an operation of a kind that the table lacks is refused", async () => {
  await using operations = testOperations(store, () => () => Promise.reject(new Error("begun")));
  expect(await failureOf(operations.submit(ACCOUNT, echoKind, ECHO))).toMatchObject({
    message: "there is no kind of operation named echo",
  });
});

test("every kind has its facts and its place in the table, under one name", () => {
  expect(Object.keys(KINDS)).toEqual(Object.keys(KIND_FACTS));
  for (const [name, kind] of Object.entries(KINDS)) expect(kind.name).toBe(name as OperationKind);
});

test("the manual names the phases of each kind as its facts do", async () => {
  const manual = await Bun.file("docs/operations.md").text();
  for (const { metric, noun, phases } of Object.values(KIND_FACTS)) {
    expect(manual).toContain(
      `| \`coppice_${metric}_phase_seconds\` | time of each step of ${noun}: ${phases.join(", ")} |`,
    );
  }
});
