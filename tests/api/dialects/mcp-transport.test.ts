/** The Model Context Protocol over HTTP: messages, sessions and limits, with requests that no library sends, too. */

import { afterAll, beforeAll, describe, expect, spyOn, test } from "bun:test";
import { connect, type Socket } from "node:net";
import { revokeToken } from "../../../src/db/tokens.ts";
import type { OperationId } from "../../../src/domain/ids.ts";
import { READERS_COUNT_MAX } from "../../../src/storage/events/event-logs.ts";
import { Api } from "../../support/api/api.ts";
import { ALICE, instancesCount, latestInstance, statusOf } from "../../support/api/latest-instance.ts";
import { heldTest } from "../../support/api/program.ts";
import { throwing } from "../../support/failures.ts";
import { McpClient } from "../../support/mcp-client.ts";
import { until } from "../../support/waiting.ts";

const SESSIONS_COUNT = 200;
const CALLS_COUNT_MAX = 256;

let api: Api;
let image = "";
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([[{ path: "f", type: "f", content: "" }]]);
});
afterAll(() => api[Symbol.asyncDispose]());

describe("the transport", () => {
  const NESTED = `${"[".repeat(200_000)}${"]".repeat(200_000)}`;
  const MANY_NAMES = JSON.stringify(Object.fromEntries(Array.from({ length: 17_000 }, (_, index) => [`n${index}`, 0])));
  const withToken = (progressToken: unknown) => ({
    ...{ jsonrpc: "2.0", id: 1, method: "tools/list", params: { _meta: { progressToken } } },
  });
  const ACCEPT = { accept: "application/json, text/event-stream" };
  const rpc = (message: unknown, headers: Record<string, string> = {}) =>
    api.call("POST", "/mcp", { json: message, headers: { ...ACCEPT, ...headers } });
  const PING = { jsonrpc: "2.0", id: 1, method: "ping" };

  test.each([
    ["no JSON", "{", 400, -32_700],
    ["no object", "7", 400, -32_600],
    ["no message", "{}", 400, -32_600],
    ["a batch", JSON.stringify([PING]), 400, -32_600],
    ["another version", '{"jsonrpc":"1.0","id":1,"method":"ping"}', 400, -32_600],
    ["deep nesting", `{"jsonrpc":"2.0","id":1,"method":"ping","params":${"[".repeat(300_000)}`, 400, -32_600],
    ["parameters that are nested deeply", `{"jsonrpc":"2.0","id":1,"method":"ping","params":${NESTED}}`, 400, -32_600],
    ["a message that is too long", `"${"x".repeat(3_000_000)}"`, 413, -32_600],
    ["many names", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":${MANY_NAMES}}}`, 400, -32_600],
    ["a long id", `{"jsonrpc":"2.0","id":"${"x".repeat(257)}","method":"ping"}`, 400, -32_600],
    ["a long token of the progress", JSON.stringify(withToken("x".repeat(257))), 400, -32_600],
    ["an id that is none", '{"jsonrpc":"2.0","id":{},"method":"ping"}', 400, -32_600],
  ])("refuses %s", async (_what, body, status, code) => {
    const headers = { ...ACCEPT, "content-type": "application/json" };
    const answer = await api.call("POST", "/mcp", { body, headers });
    expect([answer.status, answer.json.error.code]).toEqual([status, code]);
  });

  test("has no stream of its own, and no other path", async () => {
    expect((await api.call("GET", "/mcp", { headers: ACCEPT })).status).toBe(405);
    expect((await api.call("POST", "/mcp/x", { json: PING })).status).toBe(404);
    expect((await api.call("POST", "/mcp", { json: PING, token: null })).status).toBe(401);
  });

  test("serves pages of this machine only, whatever name they used for it", async () => {
    const asked = async (origin: string) => (await rpc(PING, { origin })).status;
    expect(await asked("http://localhost:3000")).toBe(200);
    expect(await asked("https://127.0.0.1")).toBe(200);
    for (const origin of ["http://evil.example", "null", "http://localhost.evil.example", "file://", "x"]) {
      expect([origin, await asked(origin)]).toEqual([origin, 403]);
    }
  });

  test("accepts a notification, and answers an unknown request with an error", async () => {
    expect((await rpc({ jsonrpc: "2.0", method: "notifications/initialized" })).status).toBe(202);
    expect((await rpc({ jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: 7 } })).status).toBe(
      202,
    );
    expect((await rpc({ jsonrpc: "2.0", id: 1, result: {} })).status).toBe(202);
    expect((await rpc({ jsonrpc: "2.0", id: 1, method: "no/such" })).text).toContain("-32601");
  });

  const follow = (operation: string, id: number) => ({
    ...{ jsonrpc: "2.0", id, method: "tools/call" },
    params: { name: "follow", arguments: { operation, wait_seconds: 600 } },
  });
  const waiting = () => api.parts.operations.waitsCount;

  heldTest("cancels the request of that session only, and all of a session that ends", async () => {
    const { id } = api.parts.operations.insert(ALICE, "instance");
    const left = [rpc(follow(id, 1), { "mcp-session-id": "a" }), rpc(follow(id, 1), { "mcp-session-id": "b" })];
    left.push(rpc(follow(id, 2), { "mcp-session-id": "b" }));
    await until("they wait", () => waiting() === 3);
    const cancel = { jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: 1 } };
    await rpc(cancel, { "mcp-session-id": "c" });
    await api.call("POST", "/mcp", {
      ...{ token: api.foreignToken, json: cancel },
      headers: { ...ACCEPT, "mcp-session-id": "a" },
    });
    expect(waiting()).toBe(3);
    await rpc(cancel, { "mcp-session-id": "a" });
    await until("one has left", () => waiting() === 2);
    await left[0];
    expect((await api.call("DELETE", "/mcp", { headers: { "mcp-session-id": "b" } })).status).toBe(204);
    await until("all have left", () => waiting() === 0);
    await Promise.all(left);
    expect(statusOf(api, id)).toBe("PENDING");
  });

  heldTest("ends a call when its token is revoked, and its run continues", async () => {
    const started = spyOn(globalThis, "setInterval");
    using _restored = { [Symbol.dispose]: () => started.mockRestore() };
    const before = await instancesCount(api);
    const token = await api.issue("alice", ["*"]);
    const send = (json: unknown) => api.call("POST", "/mcp", { token, json, headers: ACCEPT });
    const run = { name: "run", arguments: { image, command: "sleep 1000", wait_seconds: 600 } };
    const running = send({ jsonrpc: "2.0", id: 1, method: "tools/call", params: run });
    const id = await latestInstance(api, before + 1);
    const following = send(follow(id, 2));
    await until("both wait", () => waiting() === 2);
    const jti = JSON.parse(Buffer.from(token.split(".")[1] ?? "", "base64url").toString("utf8")).jti as string;
    expect(revokeToken(api.parts.db, jti, Date.now())).toBe(true);
    for (const [check, ms] of started.mock.calls) if (ms === 15_000) (check as () => void)();
    for (const { text } of await Promise.all([running, following])) expect(text).not.toContain("result");
    await until("no call waits", () => waiting() === 0);
    expect(statusOf(api, id)).not.toBe("CANCELLED");
    api.parts.operations.cancel(ALICE, id as OperationId);
  });

  heldTest(`serves ${SESSIONS_COUNT} clients that wait, and nothing is left when they leave`, async () => {
    const { id } = api.parts.operations.insert(ALICE, "instance");
    const clients = await Promise.all(Array.from({ length: SESSIONS_COUNT }, () => McpClient.open(api.url, api.token)));
    const calls = clients.map((client) => client.call("follow", { operation: id, wait_seconds: 600 }));
    const ended = Promise.allSettled(calls);
    await until("all wait", () => waiting() === SESSIONS_COUNT);
    await Promise.all(clients.slice(1).map((client) => client[Symbol.asyncDispose]()));
    await until("those that left do not wait", () => waiting() === 1);
    api.parts.operations.cancel(ALICE, id);
    expect((await calls[0])?.text).toContain("was cancelled");
    await clients[0]?.[Symbol.asyncDispose]();
    await ended;
  });

  test("lists images as resources in pages", async () => {
    const images = new Set<string>();
    for (let count = 0; count < 120; count++) {
      images.add(await api.addImage([[{ path: "f", type: "f", content: "" }]], { account: "carol" }));
    }
    await using mcp = await McpClient.open(api.url, await api.issue("carol", ["images:read"]));
    const listed: string[] = [];
    let cursor: string | undefined;
    do {
      const page = await mcp.client.request({
        method: "resources/list",
        params: cursor === undefined ? {} : { cursor },
      });
      expect(page.resources.length).toBeLessThanOrEqual(50);
      listed.push(...page.resources.map(({ uri }) => /images\/([^/]*)\/files\/$/.exec(uri)?.[1] ?? uri));
      cursor = page.nextCursor;
    } while (cursor !== undefined && listed.length < 200);
    expect(listed.sort()).toEqual([...images].sort());
    const wrong = mcp.client.request({ method: "resources/list", params: { cursor: "-1" } });
    expect(await throwing(wrong)).toThrow("cursor");
  });

  heldTest("waits without progress when too many clients follow an operation", async () => {
    const { id } = api.parts.operations.insert(ALICE, "instance");
    using readers = new DisposableStack();
    for (let count = 0; count < READERS_COUNT_MAX; count++) {
      readers.use(api.parts.eventLogs.read(ALICE, id, -1, false));
    }
    await using mcp = await McpClient.open(api.url, api.token);
    const options = { onprogress: () => undefined };
    const call = mcp.call("follow", { operation: id, wait_seconds: 600 }, options);
    await until("it waits", () => waiting() === 1);
    api.parts.operations.cancel(ALICE, id);
    expect((await call).text).toContain("was cancelled");
  });

  /** Sends a message by a connection of its own, and resolves with the head of the answer. */
  async function post(token: string, message: unknown): Promise<{ readonly head: string; readonly socket: Socket }> {
    const body = JSON.stringify(message);
    const lines = [
      ...["POST /mcp HTTP/1.1", "Host: a.test", `Authorization: Bearer ${token}`, "Content-Type: application/json"],
      ...[`Content-Length: ${Buffer.byteLength(body)}`, "", body],
    ];
    const { promise, resolve, reject } = Promise.withResolvers<string>();
    const socket = connect(Number(new URL(api.url).port), "127.0.0.1", () => socket.write(lines.join("\r\n")));
    socket.on("error", reject).once("data", (chunk) => resolve(String(chunk)));
    return { head: await promise, socket };
  }

  heldTest("an account has a limited number of requests at a time", async () => {
    const { id } = api.parts.operations.insert(ALICE, "instance");
    const count = CALLS_COUNT_MAX + 4;
    const asked = await Promise.all(Array.from({ length: count }, () => post(api.token, follow(id, 1))));
    const refused = asked.filter(({ head }) => head.startsWith("HTTP/1.1 429"));
    expect(refused.length).toBe(4);
    expect(refused[0]?.head.toLowerCase()).toContain("retry-after:");
    const foreign = await post(api.foreignToken, PING);
    expect(foreign.head).toStartWith("HTTP/1.1 200");
    for (const { socket } of [...asked, foreign]) socket.destroy();
    await until("no call waits", () => waiting() === 0);
    await until("there is room again", async () => (await rpc(PING)).status === 200);
  });

  test("a client that disconnects ends the run that it waits for", async () => {
    const before = await instancesCount(api);
    const leaving = new AbortController();
    const params = { name: "run", arguments: { image, command: "sleep 1000" } };
    const response = await fetch(`${api.url}/mcp`, {
      method: "POST",
      headers: { ...ACCEPT, "content-type": "application/json", authorization: `Bearer ${api.token}` },
      body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params }),
      signal: leaving.signal,
    });
    const id = await latestInstance(api, before + 1);
    leaving.abort();
    await response.body?.cancel().catch(() => undefined);
    await until("it is cancelled", () => statusOf(api, id) === "CANCELLED");
  });
});
