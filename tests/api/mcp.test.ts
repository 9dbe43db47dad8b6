/** The Model Context Protocol by its official library, and by hand where a client does what the library would not. */

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { connect, type Socket } from "node:net";
import { getOperation } from "../../src/db/operations.ts";
import type { AccountId, OperationId } from "../../src/domain/ids.ts";
import { READERS_COUNT_MAX } from "../../src/supervisor/operations/event-logs.ts";
import { Api } from "../support/api/api.ts";
import { heldTest } from "../support/api/program.ts";
import { ERAS, McpClient } from "../support/mcp-client.ts";
import { until } from "../support/waiting.ts";

/** Four characters are about a token. */
const TOOLS_CHARACTERS_MAX = 10_000;
const SESSIONS_COUNT = 200;
const CALLS_COUNT_MAX = 256;
const ALICE = "alice" as AccountId;
const UNKNOWN = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";

let api: Api;
let image = "";
let foreignImage = "";
beforeAll(async () => {
  api = await Api.start();
  const files = [
    { path: "etc", type: "d" as const },
    { path: "etc/motd", type: "f" as const, content: "welcome\nto the \x1b[31mmachine\u202e\n" },
    { path: "etc/raw", type: "f" as const, content: Uint8Array.from({ length: 400_000 }, (_, at) => at % 256) },
    { path: "etc/long", type: "f" as const, content: "0123456789\n".repeat(100_000) },
    { path: "etc/new\nline", type: "f" as const, content: "" },
  ];
  image = await api.addImage([files], { tag: "base" });
  foreignImage = await api.addImage([files], { account: "bob", tag: "secret" });
});
afterAll(() => api[Symbol.asyncDispose]());

const statusOf = (id: string) => getOperation(api.parts.db, ALICE, id as OperationId)?.status;

/** The operation that the next submission makes. */
async function latestOperation(count: number): Promise<string> {
  const listed = async () => (await api.call("GET", "/v1/operations?kind=instance")).json as { id: string }[];
  await until("it was submitted", async () => (await listed()).length === count);
  return (await listed())[0]?.id ?? "";
}

const operationsCount = async () =>
  ((await api.call("GET", "/v1/operations?kind=instance&limit=1000")).json as unknown[]).length;

describe.each(ERAS)("a client (%s)", (era) => {
  let mcp: McpClient;
  beforeAll(async () => {
    mcp = await McpClient.open(api.url, api.token, era);
  });
  afterAll(() => mcp[Symbol.asyncDispose]());

  test("learns what there is, in few words", async () => {
    const { tools } = await mcp.client.listTools();
    expect(JSON.stringify(tools).length).toBeLessThan(TOOLS_CHARACTERS_MAX);
    expect(tools.map(({ name }) => name).sort()).toEqual([
      ...["checkpoint", "delete_image", "diff", "end", "follow", "image_history", "import_image", "list_files"],
      ...["list_images", "list_operations", "read_file", "read_output", "run", "search", "tag_image", "upload_file"],
    ]);
    for (const { inputSchema, annotations, description } of tools) {
      expect(inputSchema["additionalProperties"]).toBe(false);
      expect(annotations).toBeDefined();
      expect(description?.length).toBeGreaterThan(20);
    }
    expect(mcp.client.getInstructions()).toContain("image");
  });

  test("sees the images of its own account only", async () => {
    expect((await mcp.call("list_images")).text).toContain(`${image} base`);
    expect((await mcp.call("list_images")).text).not.toContain(foreignImage);
    for (const name of [foreignImage, "secret", UNKNOWN, "tag:secret", "no/such:tag"]) {
      const { isError, text } = await mcp.call("list_files", { image: name });
      expect({ isError, text }).toEqual({ isError: true, text: expect.stringContaining("list_images shows") });
    }
  });

  test("reads files as text that does nothing", async () => {
    const { items } = await mcp.call("read_file", { image: "base", path: "/etc/motd" });
    expect(items.map(({ text }) => text)).toEqual([
      expect.stringContaining("2 control or invisible characters are not shown"),
      "welcome\nto the [31mmachine\n",
    ]);
    const long = await mcp.call("read_file", { image, path: "/etc/long", offset: 11, length: 22 });
    expect(long.text).toContain("bytes 11 to 33 of 1100000; offset 33 goes on");
    expect(long.items[1]?.text).toBe("0123456789\n0123456789\n");
    const uri = `coppice://images/${image}/files/etc/long`;
    expect(long.items[2]).toEqual({ type: "resource_link", uri, name: "long", size: 1_100_000 } as never);
    expect((await mcp.call("read_file", { image, path: "/etc/raw" })).text).toContain("binary, 400,000 bytes");
    expect((await mcp.call("list_files", { image, path: "/etc" })).text).toContain("new\\u{a}line 0");
  });

  test("gives an image another tag, and moves a tag", async () => {
    const other = await api.addImage([[{ path: "f", type: "f", content: "" }]], { tag: `${era}-first` });
    expect((await mcp.call("tag_image", { image: other, tag: `${era}-second` })).isError).toBe(false);
    const listed = async () => (await mcp.call("list_images", { tag_prefix: era })).text;
    expect(await listed()).toContain(`${other} ${era}-first`);
    expect(await listed()).toContain(`${other} ${era}-second`);
    await mcp.call("tag_image", { image, tag: `${era}-second` });
    expect(await listed()).toContain(`${image} ${era}-second`);
    expect(await listed()).not.toContain(`${other} ${era}-second`);
    expect((await mcp.call("delete_image", { image: `${era}-first` })).structured).toEqual({ image: other });
    expect((await mcp.call("read_file", { image: `${era}-second`, path: "/etc/motd" })).isError).toBe(false);
    expect((await mcp.call("import_image", { reference: "alpine" })).text).toStartWith("reference names no registry");
  });

  test("searches content and names", async () => {
    expect((await mcp.call("search", { image, pattern: "^wel" })).text).toBe("/etc/motd:1: welcome");
    expect((await mcp.call("search", { image, glob: "mot?" })).text).toStartWith("/etc/motd ");
    expect((await mcp.call("search", { image, glob: "*", limit: 1 })).text).toContain("not complete");
    expect((await mcp.call("search", { image })).text).toContain("needs a pattern");
    expect((await mcp.call("search", { image, glob: "{" })).isError).toBe(true);
  });

  test("reads resources in pages, and in parts that it can put together", async () => {
    const { resources } = await mcp.client.listResources();
    expect(resources.map(({ uri }) => uri)).toContain(`coppice://images/${image}/files/`);
    const read = async (uri: string) => {
      const [part] = (await mcp.client.readResource({ uri })).contents;
      return part as { text?: string; blob?: string; mimeType: string; _meta?: Record<string, unknown> };
    };
    expect((await read(`coppice://images/${image}/files/etc`)).text).toContain("motd\n");
    for (const [name, size] of [
      ["raw", 400_000],
      ["long", 1_100_000],
    ] as const) {
      const parts: Buffer[] = [];
      let uri: string | undefined = `coppice://images/${image}/files/etc/${name}`;
      for (; uri !== undefined && parts.length < 10; ) {
        const part = await read(uri);
        parts.push(part.text === undefined ? Buffer.from(part.blob ?? "", "base64") : Buffer.from(part.text));
        uri = part._meta?.["coppice/next"] as string | undefined;
      }
      expect([name, Buffer.concat(parts).byteLength]).toEqual([name, size]);
    }
    // It is as it is for programs; a client must not render it.
    expect(await read(`coppice://images/${image}/files/etc/motd`)).toMatchObject({
      mimeType: "text/plain",
      text: "welcome\nto the \x1b[31mmachine\u202e\n",
    });
    expect((await read(`coppice://images/${image}/files/etc/new%0Aline`)).text).toBe("");
    for (const path of [
      `images/${foreignImage}/files/etc/motd`,
      `images/${image}/files/nope`,
      "x",
      "images/x/files/",
    ]) {
      await expect(mcp.client.readResource({ uri: `coppice://${path}` })).rejects.toThrow();
    }
  });

  test("is told what is wrong with its input", async () => {
    const wrong: [string, Record<string, unknown>, string][] = [
      ["run", { image }, "command is required"],
      ["run", { image, command: "true", comand: "x" }, "there is no parameter comand"],
      ["run", { image, command: "true", timeout: "5" }, "timeout must be an integer"],
      ["run", { image, command: "true", files: [{ path: "/a" }] }, "either content or file"],
      ["run", { image, command: "true", network: ["http://x"] }, "http://x"],
      ["follow", { operation: "x" }, "operation must be the id"],
      ["follow", { operation: UNKNOWN }, "list_operations shows"],
      ["tag_image", { image, tag: "-" }, "tag must be 1 to 128 characters"],
      ["read_file", { image, path: "etc" }, "must be absolute"],
      ["read_file", { image, path: "/nope" }, "/nope"],
      ["upload_file", { content: "*", encoding: "base64" }, "standard base64"],
    ];
    for (const [name, input, said] of wrong) {
      const { isError, text } = await mcp.call(name, input);
      expect({ name, isError, text }).toEqual({ name, isError: true, text: expect.stringContaining(said) });
      expect(text).not.toMatch(/\bat .*\.ts:|Error:/);
    }
    await expect(mcp.call("rm_rf")).rejects.toThrow("there is no tool of this name");
  });

  test("that cancels a run ends it, unless it is detached or the token may not", async () => {
    const weak = await api.issue("alice", ["instances:spawn", "operations:read", "images:read"]);
    await using other = await McpClient.open(api.url, weak, era);
    for (const [client, input, status] of [
      [mcp, {}, "CANCELLED"],
      [mcp, { detach: true }, "PENDING"],
      [other, {}, "PENDING"],
    ] as const) {
      const before = await operationsCount();
      const cancelling = new AbortController();
      const options = { signal: cancelling.signal, onprogress: () => undefined };
      const call = client.call("run", { image: "base", command: "sleep 1000", ...input }, options);
      const id = await latestOperation(before + 1);
      cancelling.abort();
      await expect(call).rejects.toThrow();
      if (status === "CANCELLED") await until("it is cancelled", () => statusOf(id) === status);
      else await until("nobody waits", () => api.parts.operations.waitsCount === 0);
      expect(statusOf(id)).toBe(status);
    }
  });

  test("gets no more from offsets that no listing has", async () => {
    const calls: [string, Record<string, unknown>][] = [
      ["list_images", {}],
      ["list_operations", {}],
      ["image_history", { image }],
      ["list_files", { image }],
      ["read_file", { image, path: "/etc/long" }],
    ];
    for (const [name, input] of calls) {
      const refused = await mcp.call(name, { ...input, offset: 1e300 });
      expect({ name, ...refused }).toMatchObject({ name, isError: true, text: expect.stringContaining("offset") });
      expect((await mcp.call(name, { ...input, offset: Number.MAX_SAFE_INTEGER })).isError).toBe(false);
    }
  });

  test("may do what the scopes of its token allow", async () => {
    const none = await api.issue("alice", ["files:read"]);
    await using other = await McpClient.open(api.url, none, era);
    const inputs: Record<string, Record<string, unknown>> = {
      run: { image, command: "true" },
      import_image: { reference: "registry.example.net/a:1" },
      tag_image: { image, tag: "t" },
      upload_file: { content: "x" },
      search: { image, glob: "*" },
      diff: { image },
    };
    const { tools } = await other.client.listTools();
    for (const { name, inputSchema } of tools) {
      const required = (inputSchema["required"] ?? []) as string[];
      const plain = Object.fromEntries(required.map((field) => [field, field === "operation" ? UNKNOWN : image]));
      const { isError, text } = await other.call(name, inputs[name] ?? plain);
      expect({ name, isError, text }).toEqual({
        name,
        isError: true,
        text: expect.stringMatching(/^the token does not allow [a-z]+:[a-z]+; .*coppice token create/),
      });
    }
    await expect(other.client.listResources()).rejects.toThrow("images:read");
    // What goes beyond a run needs more than the run.
    const runs = await api.issue("alice", ["instances:spawn", "images:read"]);
    await using runner = await McpClient.open(api.url, runs, era);
    const files = [{ path: "/a", content: "x" }];
    expect((await runner.call("run", { image, command: "true", files })).text).toContain("files:write");
    const network = ["a.example.org:443"];
    expect((await runner.call("run", { image, command: "true", network })).text).toContain("instances:network");
    const { text, operation } = await runner.call("run", { image, command: "true", disposable: true });
    expect(text).toMatch(/^operation [0-9a-f-]{36} was accepted and goes on; the token does not allow operations:read/);
    expect(operation).toBeNull();
  });
});

describe("the transport", () => {
  const NESTED = `${"[".repeat(200_000)}${"]".repeat(200_000)}`;
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
    ["deep nesting", `{"jsonrpc":"2.0","id":1,"method":"ping","params":${"[".repeat(300_000)}`, 400, -32_700],
    ["parameters that are nested deeply", `{"jsonrpc":"2.0","id":1,"method":"ping","params":${NESTED}}`, 400, -32_600],
    ["a message that is too long", `"${"x".repeat(3_000_000)}"`, 413, -32_600],
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

  test("serves pages of this machine only, whatever name led there", async () => {
    const asked = async (origin: string) => (await rpc(PING, { origin })).status;
    expect(await asked("http://localhost:3000")).toBe(200);
    expect(await asked("https://127.0.0.1")).toBe(200);
    for (const origin of ["http://evil.example", "null", "http://localhost.evil.example", "file://", "x"]) {
      expect([origin, await asked(origin)]).toEqual([origin, 403]);
    }
  });

  test("takes a notification, and answers one that it does not know", async () => {
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
    expect(statusOf(id)).toBe("PENDING");
  });

  heldTest(`serves ${SESSIONS_COUNT} clients that wait, and nothing is left when they go`, async () => {
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

  heldTest("an account has a number of requests at a time", async () => {
    const { id } = api.parts.operations.insert(ALICE, "instance");
    const count = CALLS_COUNT_MAX + 4;
    const asked = await Promise.all(Array.from({ length: count }, () => post(api.token, follow(id, 1))));
    const refused = asked.filter(({ head }) => head.startsWith("HTTP/1.1 429"));
    expect(refused.length).toBe(4);
    expect(refused[0]?.head.toLowerCase()).toContain("retry-after:");
    const foreign = await post(api.foreignToken, PING);
    expect(foreign.head).toStartWith("HTTP/1.1 200");
    for (const { socket } of [...asked, foreign]) socket.destroy();
    await until("nobody waits", () => waiting() === 0);
    await until("there is room again", async () => (await rpc(PING)).status === 200);
  });

  test("a client that goes away ends the run that it waits for", async () => {
    const before = await operationsCount();
    const leaving = new AbortController();
    const params = { name: "run", arguments: { image, command: "sleep 1000" } };
    const response = await fetch(`${api.url}/mcp`, {
      method: "POST",
      headers: { ...ACCEPT, "content-type": "application/json", authorization: `Bearer ${api.token}` },
      body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params }),
      signal: leaving.signal,
    });
    const id = await latestOperation(before + 1);
    leaving.abort();
    await response.body?.cancel().catch(() => undefined);
    await until("it is cancelled", () => statusOf(id) === "CANCELLED");
  });
});
