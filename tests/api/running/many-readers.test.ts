/** The resources of slow readers are limited by their number, and are released however they leave. */

import { afterAll, beforeAll, expect, test } from "bun:test";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { ACCOUNT_LIMITS } from "../../../src/domain/account/limits.ts";
import type { AccountId, OperationId } from "../../../src/domain/ids.ts";
import { Api } from "../../support/api/api.ts";
import { pause } from "../../support/waiting.ts";

const FILES_COUNT = 20_000;
/** More than the buffers of a connection hold. */
const LONG_BYTES = 33_554_432;
/** Two extents with a hole between them are not sent from the file at once. */
const HOLE_BYTES = 4096;
/** Requests whose answers begin, and then wait for their readers. */
const MORE_COUNT = 8;

let api: Api;
let foreign = "";
const path = { list: "", archive: "", diff: "", save: "" };
/** Replies that a reader can leave unread for as long as it likes. */
const long = { outputs: "", events: "", download: "" };
beforeAll(async () => {
  api = await Api.start();
  const files = Array.from({ length: FILES_COUNT }, (_, n) => ({
    path: `${n}`.padStart(200, "f"),
    type: "f" as const,
  }));
  const image = await api.addImage([files]);
  foreign = await api.addImage([files.slice(0, 10)], { account: "bob" });
  path.list = `/v1/inspect/${image}/list?path=/`;
  path.archive = `/v1/inspect/${image}/archive?path=/`;
  path.diff = `/v1/images/${image}/diff?limit=1`;
  const content = Buffer.alloc(LONG_BYTES / 2, "x");
  const parts = [
    { at: 0, bytes: content },
    { at: content.length + HOLE_BYTES, bytes: content },
  ];
  const size = LONG_BYTES + HOLE_BYTES;
  const large = await api.addImage([[{ path: "large", type: "f", parts, size }]]);
  path.save = `/v1/images/${large}/save`;
  long.download = `/v1/inspect/${large}/download?path=/large`;
  const id = await addOutput();
  long.outputs = `/v1/operations/${id}`;
  long.events = `/v1/operations/${id}/events`;
}, 60_000);
afterAll(() => api[Symbol.asyncDispose]());

/** An instance that has ended, with a long output. */
async function addOutput(): Promise<OperationId> {
  const { id } = api.operations.insert("alice" as AccountId, "instance");
  api.operations.start(id);
  using log = api.parts.eventLogs.open(id);
  await log.outputs(1, LONG_BYTES, true).write("stdout", Buffer.alloc(LONG_BYTES, "y"));
  await log.end();
  api.operations.succeed(id, {
    exit_code: 0,
    stdout: { truncated: false, bytes: LONG_BYTES },
    stderr: { truncated: false, bytes: 0 },
    cpu_time_ms: 1,
    memory_bytes: 1,
    timed_out: false,
    isolation: "vm-emulated",
  });
  return id;
}

function ask(target: string): Socket {
  const { hostname, port } = new URL(api.url);
  const socket = connect(Number(port), hostname);
  const head = `host: x\r\naccept: application/json\r\nauthorization: Bearer ${api.token}`;
  socket.write(`GET ${target} HTTP/1.1\r\n${head}\r\n\r\n`);
  return socket;
}

/** Resolves when the answer has begun, and reads no more of it. */
async function begun(socket: Socket): Promise<void> {
  await once(socket, "readable");
  socket.pause();
}

/** Requests `next` while clients of the same account leave as many replies of `slow` unread as the limit allows. */
async function expectToWait(slow: string, next: string): Promise<void> {
  using sockets = new DisposableStack();
  const readers = Array.from({ length: ACCOUNT_LIMITS.walks.max }, () => {
    const socket = ask(slow);
    sockets.defer(() => socket.destroy());
    return socket;
  });
  await Promise.all(readers.map(begun));
  const waiting = Array.from({ length: MORE_COUNT }, () => ask(next));
  for (const socket of waiting) sockets.defer(() => socket.destroy());
  let answeredCount = 0;
  for (const socket of waiting) socket.once("readable", () => answeredCount++);
  // Far longer than the reply takes.
  for (let count = 0; count < 20; count++) {
    const theirs = await api.call("GET", `/v1/inspect/${foreign}/list?path=/`, { token: api.foreignToken });
    expect(theirs.status).toBe(200);
  }
  expect(answeredCount).toBe(0);
  for (const socket of readers) socket.destroy();
  await Promise.all(waiting.map(begun));
}

test.each(["list", "archive", "save"] as const)(
  "a diff waits for slow readers of a %s, only of its own account",
  async (what) => await expectToWait(path[what], path.diff),
  60_000,
);

test.each(["outputs", "events", "download"] as const)(
  "a download in pieces waits for slow readers of long replies (%s), only of its own account",
  async (what) => {
    await expectToWait(long[what], long.download);
    // Walks have a limit of their own.
    expect((await api.call("GET", path.diff)).status).toBe(200);
  },
  60_000,
);

test("clients that leave at once free their places", async () => {
  for (const target of [...Object.values(path), ...Object.values(long)]) {
    for (let count = 0; count < ACCOUNT_LIMITS.walks.max + MORE_COUNT; count++) {
      const socket = ask(target);
      await pause("each leaves a little later", count / 5);
      socket.destroy();
    }
    expect((await api.call("GET", path.diff)).status).toBe(200);
    expect((await api.call("GET", long.events)).status).toBe(200);
  }
}, 60_000);
