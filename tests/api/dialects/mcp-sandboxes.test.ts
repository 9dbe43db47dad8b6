/** The tools for sandboxes of the Model Context Protocol; the processes are real ones, on this host. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Api, LIMITS } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { openSandbox, runSandbox } from "../../support/api/sandboxes.ts";
import { throwing } from "../../support/failures.ts";
import { McpClient } from "../../support/mcp-client.ts";
import { until } from "../../support/waiting.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

const PATH = "/usr/bin:/bin";

let api: Api;
let mcp: McpClient;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
  mcp = await McpClient.open(api.url, api.token);
});
afterAll(async () => {
  await mcp[Symbol.asyncDispose]();
  await api[Symbol.asyncDispose]();
});

heldTest("a sandbox is opened when its machine runs, and is listed until it is ended", async () => {
  expect((await mcp.call("sandbox_list")).text).toBe("there are none; sandbox_open opens one");
  const opening = mcp.call("sandbox_open", { image: "base", name: "dev", timeout: 60 });
  let id = "";
  while (id === "") id = (await api.call("GET", "/v1/sandboxes?name=dev")).json[0]?.uuid ?? "";
  await using _running = await runSandbox(api, id);
  const opened = await opening;
  expect(opened.structured).toEqual({ uuid: id, name: "dev", state: "running" });
  expect(opened.text).toContain("dev running, until 20");
  expect((await mcp.call("sandbox_list")).text).toContain(`uuid ${id}`);
  const again = await mcp.call("sandbox_open", { image: "base", name: "dev" });
  expect([again.isError, again.text]).toEqual([true, "another sandbox is named dev"]);
  expect((await mcp.call("sandbox_end", { sandbox: "dev" })).structured).toMatchObject({ state: "ended" });
  const gone = await mcp.call("sandbox_exec", { sandbox: "dev", command: "true" });
  expect([gone.isError, gone.text]).toEqual([true, "no such sandbox. sandbox_list shows those that there are."]);
});

heldTest("commands run in it, and one that lasts is waited for again", async () => {
  const id = await openSandbox(api, { name: "runs", env: { PATH } });
  await using _running = await runSandbox(api, id);
  const exec = (input: object) => mcp.call("sandbox_exec", { sandbox: "runs", ...input });
  const failed = await exec({ command: "echo out; echo err >&2; exit 3", cwd: "/tmp" });
  expect(failed.items.map(({ text }) => text)).toEqual([
    "exit code 3",
    "stdout (4 bytes):\nout\n",
    "stderr (4 bytes):\nerr\n",
  ]);
  const long = await exec({ command: "seq 1 100000", output_bytes: 300 });
  expect(long.text).toContain("are left out here: a larger output_bytes shows more. The end:");
  const waiting = await exec({ command: "sleep 60", wait_seconds: 0 });
  const spid = Number(/process (\d+) still runs/.exec(waiting.text)?.[1]);
  expect((await exec({ process: spid, wait_seconds: 0 })).text).toContain(`process ${spid} still runs`);
  await api.call("DELETE", `/v1/sandboxes/${id}/processes/${spid}?signal=KILL`);
  expect((await exec({ process: spid })).text).toContain("exit code 137");
  for (const input of [{}, { command: "true", process: 2 }]) {
    expect((await exec(input)).text).toBe("either command or process is needed");
  }
});

heldTest("a pause ends the machine, whose operation says what became of its files", async () => {
  const id = await openSandbox(api, { name: "paused" });
  await using running = await runSandbox(api, id);
  const operation = (await api.call("GET", running.path)).json.instance;
  const pausing = mcp.call("sandbox_end", { sandbox: "paused", pause: true });
  await running.finish();
  expect((await pausing).structured).toMatchObject({ state: "paused" });
  const { head } = (await api.call("GET", running.path)).json;
  const { isError, text } = await mcp.call("follow", { operation });
  expect([isError, text]).toEqual([false, expect.stringContaining(`has ended: image ${head} has its files`)]);
  expect((await mcp.call("list_operations", { kind: "sandbox" })).text).toContain(`${operation} sandbox SUCCESS`);
});

heldTest("a caller that leaves ends its command", async () => {
  const id = await openSandbox(api, { name: "left", env: { PATH } });
  await using running = await runSandbox(api, id);
  const left = new AbortController();
  const call = mcp.call("sandbox_exec", { sandbox: "left", command: "sleep 100" }, { signal: left.signal });
  const failed = throwing(call);
  await until("the command runs", () => running.instance.process(2) !== null);
  left.abort(new Error("left"));
  await failed;
  expect(await running.instance.process(2)?.exit).toMatchObject({ signal: 9 });
});

test("the answer for a token that lacks a scope names the scope", async () => {
  await using reader = await McpClient.open(api.url, await api.issue("alice", ["instances:read"]));
  expect((await reader.call("sandbox_list")).isError).toBe(false);
  for (const [name, input, scope] of [
    ["sandbox_open", { image: "base" }, "instances:spawn"],
    ["sandbox_exec", { sandbox: "dev", command: "true" }, "instances:exec"],
    ["sandbox_write", { sandbox: "dev", path: "/a", content: "" }, "instances:exec"],
    ["sandbox_rollback", { sandbox: "dev" }, "instances:spawn"],
  ] as const) {
    const { isError, text } = await reader.call(name, input);
    expect([name, isError, text]).toEqual([name, true, expect.stringContaining(scope)]);
  }
});

heldTest("a link to a port needs the operator's listener", async () => {
  await openSandbox(api, { name: "served" });
  const refused = await mcp.call("sandbox_url", { sandbox: "served", port: 8080 });
  expect([refused.isError, refused.text]).toEqual([true, "the operator has not set ingress.listen"]);
  const ingress = { address: { scheme: "http", domain: "localhost", port: 8643 }, allowsPublic: false } as const;
  await using served = await Api.start({ limits: { ...LIMITS, ingress } });
  await served.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
  const id = await openSandbox(served);
  await using client = await McpClient.open(served.url, served.token);
  const { structured } = await client.call("sandbox_url", { sandbox: id, port: 8080 });
  expect(structured.url).toStartWith(`http://8080-${id}.localhost:8643/?`);
});

heldTest("files are written, read and listed", async () => {
  const directory = mkdtempSync(join(tmpdir(), "coppice-mcp-"));
  using _directory = { [Symbol.dispose]: () => rmSync(directory, { recursive: true, force: true }) };
  const id = await openSandbox(api, { name: "files" });
  await using _running = await runSandbox(api, id);
  const path = `${directory}/new/a.txt`;
  const written = await mcp.call("sandbox_write", { sandbox: "files", path, content: "one\n" });
  expect(written.structured).toEqual({ path, bytes: 4 });
  await mcp.call("sandbox_write", { sandbox: "files", path, content: "two\x1b[31m\n", append: true });
  const { items } = await mcp.call("sandbox_read", { sandbox: "files", path });
  expect(items[1]?.text).toBe("one\ntwo[31m\n");
  const part = await mcp.call("sandbox_read", { sandbox: "files", path, offset: 1, length: 2 });
  expect(part.items.map(({ text }) => text)).toEqual([`${path}: bytes 1 to 3 of 13; next offset 3`, "ne"]);
  expect((await mcp.call("sandbox_list", { sandbox: "files", path: directory })).text).toBe("new/");
  expect((await mcp.call("sandbox_list", { sandbox: "files", path: `${directory}/new` })).text).toBe("a.txt 13");
  expect((await mcp.call("sandbox_read", { sandbox: "files", path: `${directory}/none` })).isError).toBe(true);
});
