/** The resources of slow readers are limited by their number, and are released however they leave. */

import { afterAll, beforeAll, expect, test } from "bun:test";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { WALK_LIMITS } from "../../src/service/walk-limiter.ts";
import { Api } from "../support/api/api.ts";
import { pause } from "../support/waiting.ts";

const FILES_COUNT = 20_000;
/** Requests whose answers begin, and then wait for their readers. */
const MORE_COUNT = 8;

let api: Api;
let foreign = "";
const path = { list: "", archive: "", diff: "" };
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
}, 60_000);
afterAll(() => api[Symbol.asyncDispose]());

function ask(asked: string): Socket {
  const { hostname, port } = new URL(api.url);
  const socket = connect(Number(port), hostname);
  socket.write(`GET ${asked} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${api.token}\r\n\r\n`);
  return socket;
}

/** Resolves when the answer has begun, and reads no more of it. */
async function begun(socket: Socket): Promise<void> {
  await once(socket, "readable");
  socket.pause();
}

test.each(["list", "archive"] as const)(
  "a diff waits for slow readers of a %s, of its own account alone",
  async (what) => {
    using sockets = new DisposableStack();
    const asked = Array.from({ length: WALK_LIMITS.countMax }, () => {
      const socket = ask(path[what]);
      sockets.defer(() => socket.destroy());
      return socket;
    });
    await Promise.all(asked.map(begun));
    const waiting = Array.from({ length: MORE_COUNT }, () => ask(path.diff));
    for (const socket of waiting) sockets.defer(() => socket.destroy());
    let answeredCount = 0;
    for (const socket of waiting) socket.once("readable", () => answeredCount++);
    // Far longer than a diff takes.
    for (let count = 0; count < 20; count++) {
      const theirs = await api.call("GET", `/v1/inspect/${foreign}/list?path=/`, { token: api.foreignToken });
      expect(theirs.status).toBe(200);
    }
    expect(answeredCount).toBe(0);
    for (const socket of asked) socket.destroy();
    await Promise.all(waiting.map(begun));
  },
  30_000,
);

test("clients that leave at once free their places", async () => {
  for (const asked of Object.values(path)) {
    for (let delayMs = 0; delayMs < 2 * WALK_LIMITS.countMax; delayMs++) {
      const socket = ask(asked);
      await pause("each leaves a little later", delayMs / 8);
      socket.destroy();
    }
    expect((await api.call("GET", path.diff)).status).toBe(200);
  }
}, 30_000);
