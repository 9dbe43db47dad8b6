/** Processes, ports and events of a sandbox; its processes are real ones, on this host. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout } from "bun:test";
import { createServer } from "node:net";
import { Api, errorOf } from "../../support/api/api.ts";
import { AttachedClient } from "../../support/api/attached.ts";
import { heldTest } from "../../support/api/program.ts";
import { openSandbox, runSandbox } from "../../support/api/sandboxes.ts";
import { refusedHandshake, TestSocket } from "../../support/api/socket.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

const PATH = "/usr/bin:/bin";
const processes = (path: string) => ({
  start: (command: string, fields: object = {}) =>
    api.call("POST", `${path}/processes`, { json: { command, shell: true, ...fields } }),
  ended: async (spid: number) => {
    for (;;) {
      const { json } = await api.call("GET", `${path}/processes/${spid}`);
      if (json.state !== "running") return json;
    }
  },
});

/** Pauses a sandbox, and waits until it is paused. */
async function pauseSandbox({ path, finish }: { readonly path: string; readonly finish: () => Promise<void> }) {
  const pausing = api.call("POST", `${path}/pause?wait=30`);
  await finish();
  expect((await pausing).json.state).toBe("paused");
}

describe("processes of a sandbox", () => {
  heldTest("have its variables, its directory and its user, unless they have their own", async () => {
    const id = await openSandbox(api, { env: { PATH, A: "sandbox", B: "sandbox" }, cwd: "/tmp" });
    await using running = await runSandbox(api, id);
    const { start, ended } = processes(running.path);
    const answer = await start("echo $A $B; pwd; id -u; id -g", { env: { B: "own" } });
    expect(answer.json).toEqual({ spid: 2, pid: expect.any(Number) });
    expect(answer.headers.get("location")).toBe(`${running.path}/processes/2`);
    expect((await ended(2)).stdout.content).toBe("sandbox own\n/tmp\n0\n0\n");
    await start("pwd; id -u", { cwd: "/", uid: 1234 });
    expect((await ended(3)).stdout.content).toBe("/\n1234\n");
    errorOf(await start("true", { user: "root", uid: 0 }), "validation_error");
    await start("id -u; echo $HOME; pwd", { user: "root" });
    expect(await ended(4)).toMatchObject({ user: "root", stdout: { content: "0\n/root\n/tmp\n" } });
    errorOf(await start("true", { user: "unknown-user" }), "not_found");
  });

  heldTest("leave what they started running if they linger", async () => {
    await using running = await runSandbox(api, await openSandbox(api, { env: { PATH } }));
    const { start, ended } = processes(running.path);
    await start("sleep 100 >/dev/null 2>&1 & echo $!", { linger: true });
    await start(`kill ${(await ended(2)).stdout.content}`);
    expect((await ended(3)).exit_code).toBe(0);
  });

  heldTest("keep their numbers and their ends over pauses", async () => {
    const id = await openSandbox(api, { env: { PATH } });
    await using first = await runSandbox(api, id);
    const { start } = processes(first.path);
    await start("exit 3");
    await start("sleep 100");
    await pauseSandbox(first);
    const list = async () =>
      (await api.call("GET", `${first.path}/processes`)).json.map(
        ({ spid, state, exit_code }: Record<string, unknown>) => `${spid} ${state} ${exit_code}`,
      );
    expect(await list()).toEqual(["2 ended 3", "3 ended 137"]);
    for (const request of [
      api.call("DELETE", `${first.path}/processes/3`),
      api.call("GET", `${first.path}/stats?once=true`),
    ]) {
      expect(errorOf(await request, "conflict").details).toEqual({ state: "paused" });
    }
    // The start of a process resumes it.
    const starting = start("echo again");
    for (let state = ""; state !== "resuming"; ) ({ state } = (await api.call("GET", first.path)).json);
    await using second = await runSandbox(api, id);
    const { spid } = (await starting).json;
    expect(spid).toBeGreaterThan(3);
    expect((await processes(second.path).ended(spid)).stdout.content).toBe("again\n");
    expect((await list()).slice(0, 2)).toEqual(["2 ended 3", "3 ended 137"]);
    errorOf(await api.call("DELETE", `${first.path}/processes/3`), "conflict");
    errorOf(await api.call("GET", `${first.path}/processes/99`), "not_found");
  });

  heldTest("the command that keeps the machine is not one of them", async () => {
    await using running = await runSandbox(api, await openSandbox(api));
    for (const [method, rest] of [
      ["GET", ""],
      ["DELETE", ""],
    ] as const) {
      errorOf(await api.call(method, `${running.path}/processes/1${rest}`), "not_found");
    }
    expect(await refusedHandshake(api, `${running.path}/processes/1/attach`)).toMatchObject({ status: 404 });
    expect((await api.call("GET", running.path)).json.state).toBe("running");
  });

  heldTest("one whose machine is gone is lost, and an attachment to it ends", async () => {
    const id = await openSandbox(api, { env: { PATH } });
    await using running = await runSandbox(api, id);
    const { start } = processes(running.path);
    await start("echo here; exec sleep 100");
    using client = await AttachedClient.open(api, running.path, { spid: 2 });
    await client.until("here\n");
    // The end of the process stays unknown to the service.
    const lost = { error: "unavailable", message: "the machine died", details: {} } as const;
    api.operations.fail((await api.call("GET", running.path)).json.instance, lost);
    expect((await client.socket.closed).code).not.toBe(1000);
    expect((await api.call("GET", running.path)).json).toMatchObject({ state: "failed", error: lost });
    expect((await api.call("GET", `${running.path}/processes/2`)).json.state).toBe("lost");
  });

  heldTest("are refused as temporary while the state says that a machine runs which has just died", async () => {
    const id = await openSandbox(api, { env: { PATH } });
    const running = await runSandbox(api, id);
    const { start } = processes(running.path);
    await running[Symbol.asyncDispose]();
    expect((await api.call("GET", running.path)).json.state).toBe("running");
    const requests = [
      start("true"),
      api.call("GET", `${running.path}/files?path=/f`),
      api.call("PUT", `${running.path}/files?path=/g`, { body: "g" }),
      api.call("POST", `${running.path}/processes/2/stdin`, { json: { content: "x" } }),
      api.call("GET", `${running.path}/stats?once=true`),
      api.call("POST", `${running.path}/fork`, { json: { memory: true } }),
    ];
    for (const answer of await Promise.all(requests)) {
      expect(errorOf(answer, "unavailable").details).toMatchObject({ state: "running" });
      expect(answer.headers.get("retry-after")).toBe("1");
    }
    expect(await refusedHandshake(api, `${running.path}/ports/9`)).toMatchObject({ status: 503 });
  });

  heldTest("without auto_resume, a paused one starts none", async () => {
    const id = await openSandbox(api, { auto_resume: false });
    await using running = await runSandbox(api, id);
    await pauseSandbox(running);
    const { start } = processes(running.path);
    expect(errorOf(await start("true"), "conflict").details).toEqual({ state: "paused" });
    expect(await refusedHandshake(api, `${running.path}/ports/80`)).toMatchObject({ status: 409 });
  });
});

heldTest("a port of a sandbox is a connection", async () => {
  await using running = await runSandbox(api, await openSandbox(api));
  const server = createServer((socket) => socket.on("data", (bytes) => socket.write(`got ${bytes}`)));
  using _server = { [Symbol.dispose]: () => void server.close() };
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  using socket = await TestSocket.open(api, `${running.path}/ports/${port}`);
  socket.send(Buffer.from("one"));
  await socket.until(() => socket.received.toString() === "got one");
});

heldTest("its events are those of all its lives, and can be those of one process", async () => {
  const id = await openSandbox(api, { env: { PATH } });
  await using running = await runSandbox(api, id);
  const { start, ended } = processes(running.path);
  await start("echo one");
  await ended(2);
  await pauseSandbox(running);
  const events = async (query = "") => {
    const headers = { accept: "application/json" };
    const { json } = await api.call("GET", `${running.path}/events${query}`, { headers });
    return json.map(({ type }: { type: string }) => type);
  };
  expect(await events()).toEqual([...["state", "state", "spawn", "stdout", "exit", "state", "state"]]);
  expect(await events("?spid=2")).toEqual(["spawn", "stdout", "exit"]);
  // The states belong to no process: they are with the events of the agent.
  expect(await events("?spid=0")).toEqual(["state", "state", "state", "state"]);
  expect(await events("?limit=1")).toEqual(["state"]);
  await api.call("DELETE", `/v1/sandboxes/${id}`);
  // Its end is in every selection: a client that follows one leaves there.
  expect(await events("?spid=2")).toEqual(["spawn", "stdout", "exit", "state"]);
});
