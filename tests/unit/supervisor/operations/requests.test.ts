import { afterEach, beforeEach, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { sql } from "drizzle-orm";
import { type Database, openDatabase } from "../../../../src/db/database.ts";
import { getOperation } from "../../../../src/db/operations.ts";
import { operationRequest } from "../../../../src/db/requests.ts";
import { accounts, images, layers } from "../../../../src/db/schema.ts";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import type { ImageId, OperationId } from "../../../../src/domain/ids.ts";
import type { InstanceRequest, InstanceSubmission, KeptInstance } from "../../../../src/domain/spawn.ts";
import { type DataLayout, dataLayout } from "../../../../src/storage/layout.ts";
import { importKind } from "../../../../src/supervisor/kinds/image-import.ts";
import { instanceKind, instanceOrigin } from "../../../../src/supervisor/kinds/instance.ts";
import { KINDS } from "../../../../src/supervisor/kinds/kinds.ts";
import type { Operations } from "../../../../src/supervisor/operations/operations.ts";
import type { OperationsOptions } from "../../../../src/supervisor/operations/options.ts";
import { keptRequest, Requests } from "../../../../src/supervisor/operations/requests.ts";
import { prepared } from "../../../../src/supervisor/operations/work.ts";
import { alice, bob, newId, someLayer } from "../../../support/database.ts";
import { failureOf } from "../../../support/failures.ts";
import { testDirectory } from "../../../support/images/layer-files.ts";
import { type Preparation, testOperations } from "../../../support/operations.ts";
import { seededRandom } from "../../../support/random.ts";
import { until } from "../../../support/waiting.ts";

const NETWORK = { allow: [{ host: "a.example", ports: [443] }], tls: "sni", record: false } as const;
const STDIN = Buffer.from(seededRandom(7).bytes(200_000));
const image = newId<ImageId>();
const imageOfBob = newId<ImageId>();
const submission: InstanceSubmission = {
  imageId: image,
  argv: ["cat"],
  env: { KEY: "canary-value" },
  cwd: "/root",
  timeoutSeconds: 1,
  files: [],
  truncateOutputAtBytes: 1,
  ...{ uid: 0, gid: 0, stdinOpen: false, terminal: null },
  ...{ shell: false, unset: [], inherit: false, isCwdGiven: true, preserveEnv: false, preserveCwd: false },
  stdin: `base64:${STDIN.toString("base64")}`,
  hostname: null,
  disposable: true,
  tag: null,
  resources: { vcpus: 1, memoryBytes: 1, diskBytes: 1 },
  network: NETWORK,
  requestedAt: 7,
};

let directory: string;
let layout: DataLayout;
let db: Database;
beforeEach(async () => {
  directory = testDirectory("requests");
  layout = dataLayout(directory);
  await layout.ensure();
  db = openDatabase(layout.database);
  const layer = { ...someLayer(), createdAt: 1 };
  for (const id of [alice, bob]) db.orm.insert(accounts).values({ id, createdAt: 1 }).run();
  db.orm.insert(layers).values(layer).run();
  const common = { layerId: layer.id, sizeBytes: 1, createdAt: 1 };
  const rows = [
    { id: image, accountId: alice, ...common },
    { id: imageOfBob, accountId: bob, ...common },
  ];
  db.orm.insert(images).values(rows).run();
});
afterEach(async () => {
  db[Symbol.dispose]();
  await rm(directory, { recursive: true });
});

const kept = async () => (await readdir(layout.requests)).sort();
const rowOf = (id: OperationId) => getOperation(db, alice, id);
/** A scheduler that admits nothing: every submission waits. */
const machinesReady = (signal: AbortSignal) =>
  new Promise<void>((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
const waiting = (more: Partial<OperationsOptions> = {}): Operations =>
  testOperations({ db, layout }, () => () => Promise.reject(new Error("begun")), {
    machinesReady,
    ...more,
  });

/** Operations that read standard input to its end, and the text that they read. */
function reading(more: Partial<OperationsOptions> = {}): {
  operations: Operations;
  seen: (InstanceRequest & { bytes: Buffer | null })[];
} {
  const seen: (InstanceRequest & { bytes: Buffer | null })[] = [];
  const read: Preparation = async (_context, request) => {
    const { stdin } = request as InstanceRequest;
    const bytes = stdin === null ? null : Buffer.concat(await Array.fromAsync(stdin()));
    seen.push({ ...(request as InstanceRequest), bytes });
    return prepared(new AsyncDisposableStack(), { result: {} }, () => undefined);
  };
  return { operations: testOperations({ db, layout }, () => read, more), seen };
}

test("a request waits on the disk, is read in its turn, and its secrets are removed with the operation's end", async () => {
  const before = waiting();
  const { id } = await before.submit(alice, instanceKind, submission);
  expect(await kept()).toEqual([id]);
  expect(JSON.stringify(operationRequest(db, id))).not.toContain(STDIN.toString("base64").slice(0, 100));
  await before[Symbol.asyncDispose]();
  expect(rowOf(id)?.status).toBe("PENDING");
  expect(await kept()).toEqual([id]);

  const { operations, seen } = reading();
  operations.recover();
  await operations.idle();
  expect(rowOf(id)?.status).toBe("SUCCESS");
  const { stdin: _stdin, ...fields } = submission;
  expect(seen).toEqual([{ ...fields, stdin: expect.any(Function), bytes: STDIN }] as never);
  expect(await kept()).toEqual([]);
  expect(operationRequest(db, id)?.secrets).toBeNull();
  expect(JSON.stringify(operationRequest(db, id))).not.toContain("canary-value");
});

test("a request that is too long to be kept is read whole when it starts, and its beginning stays", async () => {
  const argv = ["/bin/sh", "-c", `echo canary-command; ${"x".repeat(120_000)} canary-end`];
  const long = { ...submission, argv, shell: true, stdin: "canary-input", env: { KEY: "canary-value", B: "" } };
  const before = waiting();
  const { id } = await before.submit(alice, instanceKind, long);
  await before[Symbol.asyncDispose]();
  expect(instanceOrigin(new Requests(db, layout).stored(id))).toEqual({ command: argv, network: true });
  const request = () => {
    const row = rowOf(id);
    return row === null ? null : (keptRequest(KINDS, db, row) as KeptInstance);
  };
  const beginning = { kind: "instance", shell: true, envNames: ["KEY", "B"], stdinBytes: 12, isCut: true, args: [] };
  expect(request()).toMatchObject(beginning);
  const { operations, seen } = reading();
  operations.recover();
  await operations.idle();
  expect(seen[0]?.argv).toEqual(argv);
  expect(seen[0]).not.toHaveProperty("isCut");
  expect(request()).toMatchObject({ ...beginning, imageId: image, timeoutSeconds: 1, network: NETWORK });
  expect(request()?.command).toStartWith("echo canary-command");
  // The rest is neither in the database nor in its log.
  const log = `${layout.database}-wal`;
  db.eraseSoon();
  db.orm.run(sql`pragma wal_checkpoint(truncate)`);
  const bytes = [layout.database, ...((await Bun.file(log).exists()) ? [log] : [])].map((path) => readFileSync(path));
  for (const gone of ["canary-value", "canary-input", "canary-end"]) {
    expect([gone, bytes.some((content) => content.includes(gone))]).toEqual([gone, false]);
  }
  expect(bytes.some((content) => content.includes("canary-command"))).toBe(true);
});

test("the request of an import records that it had credentials, but not the credentials", async () => {
  const operations = waiting();
  const source = { kind: "registry", reference: "registry.example.net/a:1" } as const;
  const more = { tag: "t", timeoutSeconds: 9, reuse: true, keepTags: true };
  const credentials = { username: "canary-user", password: "canary-password" };
  const { id } = await operations.submit(alice, importKind, { source, credentials, ...more });
  const row = rowOf(id);
  if (row === null) throw new Error("no row");
  expect(keptRequest(KINDS, db, row)).toEqual({
    kind: "image_import",
    source,
    tag: "t",
    timeoutSeconds: 9,
    hadCredentials: true,
  });
  expect(JSON.stringify(operationRequest(db, id))).not.toContain("canary");
  db.orm.run(sql`delete from operation_requests`);
  expect(keptRequest(KINDS, db, row)).toBeNull();
  await operations[Symbol.asyncDispose]();
});

test.each([
  ["none", null, null],
  ["an empty one", "", ""],
  ["a short one", "text\n", "text\n"],
  ["one in base64", "base64:AP8=", "\x00\xff"],
])("standard input: %s needs no file", async (_name, stdin, read) => {
  const { operations, seen } = reading();
  const submitted = operations.submit(alice, instanceKind, { ...submission, stdin });
  expect(await kept()).toEqual([]);
  await submitted;
  await operations.idle();
  expect(seen[0]?.bytes?.toString("latin1") ?? null).toBe(read);
});

test("a restart reads each request only in its turn", async () => {
  const before = waiting();
  const { id } = await before.submit(alice, instanceKind, submission);
  await before[Symbol.asyncDispose]();
  db.orm.run(sql`update operation_requests set body = 'no JSON'`);
  const after = waiting();
  after.recover();
  expect(after.counts()).toContainEqual({ kind: "instance", state: "pending", count: 1 });
  await after[Symbol.asyncDispose]();
  expect(rowOf(id)?.status).toBe("PENDING");
  const { operations } = reading();
  operations.recover();
  await operations.idle();
  expect(rowOf(id)).toMatchObject({ status: "FAILED", error: { error: "internal_error" } });
});

test("an operation that is cancelled or fails before its turn leaves no standard input behind", async () => {
  const operations = waiting();
  const cancelled = await operations.submit(alice, instanceKind, submission);
  operations.cancel(alice, cancelled.id);
  await operations.idle();
  const failing = waiting({ machinesReady: () => Promise.reject(new Error("no machines")) });
  const failed = await failing.submit(alice, instanceKind, submission);
  await failing.idle();
  expect([cancelled, failed].map(({ id }) => rowOf(id)?.status)).toEqual(["CANCELLED", "FAILED"]);
  expect(await kept()).toEqual([]);
});

test("a refused submission leaves no standard input behind", async () => {
  const operations = waiting();
  const gone = operations.submit(alice, instanceKind, { ...submission, imageId: newId<ImageId>() });
  expect(await failureOf(gone)).toMatchObject({ code: "not_found" });
  expect(await kept()).toEqual([]);
  expect(await readdir(layout.tmp)).toEqual([]);
  const late = operations.submit(alice, instanceKind, submission);
  await operations[Symbol.asyncDispose]();
  expect(await failureOf(late)).toMatchObject({ code: "unavailable" });
  expect(await kept()).toEqual([]);
});

test("after a crash leftovers are removed, waiting requests are kept, and a missing one is reported", async () => {
  const requests = new Requests(db, layout);
  const before = waiting();
  const { id } = await before.submit(alice, instanceKind, submission);
  const lost = await before.submit(alice, instanceKind, submission);
  await before[Symbol.asyncDispose]();
  for (const name of [newId(), "no-operation"]) await Bun.write(join(layout.requests, name), "left");
  await requests.sweep();
  expect(await kept()).toEqual([id, lost.id].sort());
  await rm(join(layout.requests, lost.id));
  const { operations, seen } = reading();
  operations.recover();
  await operations.idle();
  expect(rowOf(id)?.status).toBe("SUCCESS");
  expect(rowOf(lost.id)).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
  expect(seen).toHaveLength(1);
});

test("the waiting bytes of an account are limited, also while they are being stored and after a restart", async () => {
  const bytesMax = 2.5 * STDIN.byteLength;
  const accounts = () => new Accounts({ waitingOperations: { max: 100 }, waitingRequests: { max: bytesMax } });
  const before = waiting({ accounts: accounts() });
  const submitted = await Promise.allSettled(
    Array.from({ length: 5 }, () => before.submit(alice, instanceKind, submission)),
  );
  expect(submitted.filter(({ status }) => status === "fulfilled")).toHaveLength(2);
  const refusal = { code: "too_many_requests", details: { limit_bytes: bytesMax } };
  expect(await failureOf(before.submit(alice, instanceKind, submission))).toMatchObject(refusal);
  expect(await kept()).toHaveLength(2);
  expect(await before.submit(bob, instanceKind, { ...submission, imageId: imageOfBob })).toBeDefined();
  const small = await before.submit(alice, instanceKind, { ...submission, stdin: null });
  before.cancel(alice, small.id);
  await before[Symbol.asyncDispose]();

  const after = waiting({ accounts: accounts() });
  after.recover();
  expect(await failureOf(after.submit(alice, instanceKind, submission))).toMatchObject(refusal);
  const [first] = submitted.flatMap((result) => (result.status === "fulfilled" ? [result.value.id] : []));
  after.cancel(alice, first as OperationId);
  const submits = () =>
    after.submit(alice, instanceKind, submission).then(
      () => true,
      () => false,
    );
  await until("the place is given back", submits);
  await after[Symbol.asyncDispose]();
});

test("a single request may be larger than the limit for all waiting ones", async () => {
  const operations = waiting({ accounts: new Accounts({ waitingRequests: { max: 1 } }) });
  await operations.submit(alice, instanceKind, submission);
  expect(await failureOf(operations.submit(alice, instanceKind, submission))).toMatchObject({
    code: "too_many_requests",
  });
  await operations[Symbol.asyncDispose]();
});
