/** Additional processes of an instance; they are real ones, on this host. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import { PROCESSES_COUNT_MAX } from "../../../src/vm/agent/protocol.ts";
import { Api, type CallOptions, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { queuedInstance, type RunningFixture, runningInstance } from "../../support/api/running.ts";
import { pause } from "../../support/waiting.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

type Json = Record<string, unknown>;
const ENV = { PATH: "/usr/bin:/bin" };

/** The processes of one instance, as a client has them. */
function client({ path }: Pick<RunningFixture, "path">) {
  const at = (spid: number, rest = "") => `${path}/processes/${spid}${rest}`;
  const start = (fields: Json, options: CallOptions = {}) =>
    api.call("POST", `${path}/processes`, { json: { shell: true, env: ENV, ...fields }, ...options });
  return {
    at,
    start,
    /** Starts a process; fails when it does not start. */
    run: async (command: string, fields: Json = {}): Promise<number> => {
      const answer = await start({ command, ...fields });
      if (answer.status !== 201) throw new Error(answer.text);
      return answer.json.spid;
    },
    get: async (spid: number): Promise<Json> => (await api.call("GET", at(spid))).json,
    list: (query = "") => api.call("GET", `${path}/processes${query}`),
    stdin: (spid: number, json: Json) => api.call("POST", at(spid, "/stdin"), { json }),
    stream: (spid: number, body: NonNullable<CallOptions["body"]>, query = "") =>
      api.call("POST", at(spid, `/stdin/stream${query}`), { body }),
    signal: (spid: number, query = "") => api.call("DELETE", at(spid, query)),
    resize: (spid: number, json: Json) => api.call("PATCH", at(spid, "/pty"), { json }),
  };
}
type Client = ReturnType<typeof client>;

/** The process once it has ended. */
async function ended(running: RunningFixture, spid: number): Promise<Json> {
  await running.instance.process(spid)?.exit;
  for (;;) {
    const process = await client(running).get(spid);
    if (process["state"] !== "running") return process;
  }
}

/** Waits until the output of a process contains `text`. */
async function seen(processes: Client, spid: number, text: string): Promise<string> {
  for (;;) {
    const { content } = (await processes.get(spid))["stdout"] as { content: string };
    if (content.includes(text)) return content;
  }
}

describe("POST /instances/{uuid}/processes", () => {
  heldTest("runs an additional command, and reports its outcome", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    const answer = await processes.start({ command: "echo out; echo err >&2; exit 3" });
    expect([answer.status, answer.json]).toEqual([201, { spid: 2, pid: expect.any(Number) }]);
    expect(answer.headers.get("location")).toBe(`/v1/instances/${running.id}/processes/2`);
    const process = await ended(running, 2);
    expect(process).toMatchObject({
      ...{ spid: 2, state: "ended", command: "/bin/sh", args: ["-c", "echo out; echo err >&2; exit 3"] },
      ...{ cwd: "/root", uid: 0, gid: 0, exit_code: 3, signal: null, timed_out: false },
      stdout: { content: "out\n", encoding: "ascii", truncated: false },
      stderr: { content: "err\n", encoding: "ascii", truncated: false },
    });
    for (const name of ["cpu_time_ms", "memory_bytes", "duration_ms"]) expect(process[name]).toBeNumber();
    const command = await processes.get(1);
    expect(command).toMatchObject({ state: "running", exit_code: null, signal: null, cpu_time_ms: null });
    expect(command["memory_bytes"]).toBeNull();
  });

  heldTest("accepts all fields of a command", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    const spid = await processes.run('id -u; id -g; pwd; echo "$1 $KEY $HOSTNAME $(cat)"', {
      ...{ args: ["one"], env: { ...ENV, KEY: "value" }, cwd: "/tmp", uid: 1234, gid: 567 },
      stdin: `base64:${Buffer.from("in").toString("base64")}`,
    });
    const { stdout } = await ended(running, spid);
    expect(stdout).toMatchObject({ content: "1234\n567\n/tmp\none value box in\n" });
    const cut = await processes.run("head -c 100000 /dev/zero | tr '\\0' x", { truncate_output_at: 10 });
    expect((await ended(running, cut))["stdout"]).toEqual({
      content: "x".repeat(10),
      encoding: "ascii",
      truncated: true,
    });
    const late = await processes.run("sleep 60", { timeout: 1 });
    expect(await ended(running, late)).toMatchObject({ exit_code: 137, signal: 9, timed_out: true });
    const missing = await processes.start({ command: "no-such-program", shell: false });
    expect(await ended(running, missing.json.spid)).toMatchObject({ exit_code: 127 });
  });

  heldTest("an invalid request is 400 or 422, and one beyond a limit 429", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    for (const [field, value] of [
      ["command", ""],
      ["cwd", 1],
      ["timeout", 3601],
      ["stdin", "x".repeat(65_537)],
      ["stdin", "ü"],
      ["pty", { rows: 1 }],
      ["env", { "A=B": "c" }],
    ] as const) {
      const refused = errorOf(await processes.start({ command: "true", [field]: value }), "validation_error");
      expect(String(refused.details["field"])).toStartWith(field);
    }
    errorOf(await processes.start({ command: "true", cwd: "relative" }), "invalid_path");
    errorOf(await processes.start({ command: "true", cwd: "/proc/none" }), "invalid_path");
    const all = Array.from({ length: PROCESSES_COUNT_MAX - 1 }, () => processes.run("read line", { stdin_open: true }));
    const spids = await Promise.all(all);
    const refused = await processes.start({ command: "true" });
    errorOf(refused, "too_many_requests");
    expect(refused.headers.get("retry-after")).toBe("1");
    for (const spid of spids) expect((await processes.stdin(spid, { content: "\n" })).status).toBe(204);
    await Promise.all(spids.map((spid) => ended(running, spid)));
    expect(await processes.run("true")).toBe(PROCESSES_COUNT_MAX + 1);
  });

  heldTest("409 when the command does not run", async () => {
    const waiting = client({ path: `/v1/instances/${await queuedInstance(api)}` });
    errorOf(await waiting.start({ command: "true" }), "conflict");
    expect((await waiting.list()).json).toEqual([]);
    errorOf(await api.call("GET", waiting.at(1)), "not_found");
    await using running = await runningInstance(api, "exit 4");
    await running.finish();
    const processes = client(running);
    errorOf(await processes.start({ command: "true" }), "conflict");
    errorOf(await processes.signal(1), "conflict");
    errorOf(await processes.stdin(1, { content: "x" }), "conflict");
    expect(await processes.get(1)).toMatchObject({ state: "ended", exit_code: 4 });
  });

  heldTest("additional processes end with the command, and stay readable", async () => {
    await using running = await runningInstance(api, "read line", { spec: { stdin: "open" } });
    const processes = client(running);
    const spid = await processes.run("echo before; sleep 100");
    await seen(processes, spid, "before");
    running.instance.process(spid)?.signal(9);
    await processes.stdin(1, { content: "\n" });
    await running.finish();
    expect(await processes.get(spid)).toMatchObject({
      ...{ state: "ended", exit_code: 137, signal: 9 },
      stdout: { content: "before\n" },
    });
    expect((await processes.list()).json).toHaveLength(2);
  });
});

describe("GET /instances/{uuid}/processes", () => {
  heldTest("is a page, in the order of the starts, without output", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    for (let count = 0; count < 5; count++) await ended(running, await processes.run(`echo ${count}; exit ${count}`));
    const page = (await processes.list("?limit=3&offset=2")).json as Json[];
    expect(page.map(({ spid, exit_code }) => [spid, exit_code])).toEqual([
      [3, 1],
      [4, 2],
      [5, 3],
    ]);
    expect(page[0]).not.toHaveProperty("stdout");
    expect((await processes.list("?offset=6")).json).toEqual([]);
    expect((await processes.list()).json).toHaveLength(6);
    errorOf(await processes.list("?limit=0"), "validation_error");
    errorOf(await api.call("GET", processes.at(0)), "not_found");
    errorOf(await api.call("GET", processes.at(7)), "not_found");
    errorOf(await api.call("GET", `${running.path}/processes/x`), "validation_error");
  });

  heldTest("a process whose machine was lost is not running, and has no exit code", async () => {
    const running = await runningInstance(api, "echo up; sleep 100");
    const processes = client(running);
    await seen(processes, 1, "up");
    await running[Symbol.asyncDispose]();
    api.operations.fail(running.id as never, { error: "unavailable", message: "lost", details: {} });
    expect(await processes.get(1)).toMatchObject({ state: "lost", exit_code: null, signal: null });
  });

  heldTest("a long output is complete", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    const spid = await processes.run("head -c 900000 /dev/zero | tr '\\0' z");
    const { stdout } = (await ended(running, spid)) as { stdout: { content: string } };
    expect(stdout.content).toBe("z".repeat(900_000));
  });
});

describe("standard input", () => {
  heldTest("is written in pieces, in order, and ended", async () => {
    await using running = await runningInstance(api, "cat", { spec: { stdin: "open" } });
    const processes = client(running);
    expect((await processes.stdin(1, { content: "one\n" })).status).toBe(204);
    const content = Buffer.from("zwö\n").toString("base64");
    expect((await processes.stdin(1, { content, encoding: "base64" })).status).toBe(204);
    errorOf(await processes.stdin(1, { content: "ü" }), "validation_error");
    errorOf(await processes.stdin(1, { content: "a b", encoding: "base64" }), "validation_error");
    errorOf(await processes.stdin(1, { content: "x", encoding: "utf-8" }), "validation_error");
    expect((await processes.stdin(1, { content: "", close: true })).status).toBe(204);
    errorOf(await processes.stdin(1, { content: "late" }), "conflict");
    await running.command.exit;
    const { stdout } = await ended(running, 1);
    expect(Buffer.from((stdout as { content: string }).content, "base64").toString()).toBe("one\nzwö\n");
  });

  heldTest("409 where it was not left open; 404 for an unknown process", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    errorOf(await processes.stdin(1, { content: "x" }), "conflict");
    errorOf(await processes.stream(1, "x"), "conflict");
    errorOf(await processes.stdin(9, { content: "x" }), "not_found");
    const spid = await processes.run("cat", { stdin: "begin ", stdin_open: true });
    await processes.stdin(spid, { content: "end", close: true });
    expect((await ended(running, spid))["stdout"]).toMatchObject({ content: "begin end" });
  });

  heldTest("is streamed as fast as the process reads, whole", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    const piece = Buffer.from(crypto.getRandomValues(new Uint8Array(1_000_003)));
    const hash = createHash("sha256");
    const count = 64;
    let sent = 0;
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        if (sent++ === count) return controller.close();
        hash.update(piece);
        controller.enqueue(piece);
      },
    });
    const spid = await processes.run("sleep 0.3; sha256sum", { stdin_open: true });
    expect((await processes.stream(spid, body, "?close=true")).status).toBe(204);
    expect((await ended(running, spid))["stdout"]).toMatchObject({ content: `${hash.digest("hex")}  -\n` });
  });

  heldTest("a process that does not read holds its writer back, which learns of its end", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    const spid = await processes.run("sleep 100", { stdin_open: true });
    let pulled = 0;
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        pulled += 1;
        controller.enqueue(new Uint8Array(1_048_576));
      },
    });
    const stream = processes.stream(spid, body);
    let before = -1;
    while (before !== pulled || pulled === 0) {
      before = pulled;
      await pause("for a reader that reads nothing more", 200);
    }
    // In MiB: the buffers of the client and of the connection.
    expect(pulled).toBeLessThan(150);
    running.instance.process(spid)?.signal(9);
    errorOf(await stream, "conflict");
  });

  heldTest("a client that has nothing to write learns at once that the process has ended", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    const spid = await processes.run("read line; echo $line", { stdin_open: true });
    // Its second chunk never arrives.
    const body = new ReadableStream<Uint8Array>({ start: (to) => to.enqueue(Buffer.from("one\n")) });
    errorOf(await processes.stream(spid, body), "conflict");
    expect((await ended(running, spid))["stdout"]).toMatchObject({ content: "one\n" });
  });

  heldTest("writers that wait for their turn are limited, and leave nothing behind", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    // The process reads once this file exists.
    using go = { path: `/tmp/coppice-${running.id}`, [Symbol.dispose]: () => rmSync(go.path, { force: true }) };
    const command = `until [ -e ${go.path} ]; do sleep 0.05; done; cat > /dev/null; echo all`;
    const spid = await processes.run(command, { stdin_open: true });
    const leave = new AbortController();
    const url = `${api.url}${processes.at(spid, "/stdin")}`;
    const post = () =>
      fetch(url, {
        method: "POST",
        headers: { authorization: `Bearer ${api.token}`, "content-type": "application/json" },
        body: JSON.stringify({ content: "x".repeat(400_000) }),
        signal: leave.signal,
      }).then(
        ({ status }) => status,
        () => 0,
      );
    const waiting = Array.from({ length: 40 }, post);
    const refused = await Promise.race(waiting);
    expect(refused).toBe(429);
    leave.abort();
    await Promise.all(waiting);
    writeFileSync(go.path, "");
    expect((await processes.stdin(spid, { content: "more", close: true })).status).toBe(204);
    expect((await ended(running, spid))["stdout"]).toMatchObject({ content: "all\n" });
  });
});

describe("DELETE /instances/{uuid}/processes/{spid}", () => {
  heldTest("sends a signal to the process group, by name or number; KILL by default", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    for (const [query, signal] of [
      ["?signal=TERM", 15],
      ["?signal=sighup", 1],
      ["?signal=10", 10],
      ["", 9],
    ] as const) {
      const spid = await processes.run("(echo up; exec sleep 100) & wait");
      await seen(processes, spid, "up");
      expect((await processes.signal(spid, query)).status).toBe(204);
      const process = await ended(running, spid);
      expect([process["exit_code"], process["signal"]]).toEqual([128 + signal, signal]);
      errorOf(await processes.signal(spid, query), "conflict");
    }
    errorOf(await processes.signal(99), "not_found");
    errorOf(await processes.signal(0), "not_found");
  });

  test.each(["NOSUCH", "0", "65", "-9", "9.5", "SIG", "", "TERM%00"])("signal=%s is 400", async (signal) => {
    const path = `/v1/instances/${await queuedInstance(api)}/processes/1?signal=${signal}`;
    const refused = errorOf(await api.call("DELETE", path), "validation_error");
    expect(refused.details["field"]).toBe("signal");
  });
});

describe("PATCH /instances/{uuid}/processes/{spid}/pty", () => {
  heldTest("sets the size of a terminal, and of nothing else", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    const spid = await processes.run("trap 'stty size' WINCH; stty size; tty; while :; do sleep 0.05; done", {
      pty: { rows: 24, cols: 80 },
    });
    expect(await seen(processes, spid, "/dev/pts/")).toContain("24 80\r\n");
    expect(await processes.get(spid)).toMatchObject({ pty: { rows: 24, cols: 80 } });
    expect((await processes.resize(spid, { rows: 50, cols: 132 })).status).toBe(204);
    await seen(processes, spid, "50 132");
    errorOf(await processes.resize(spid, { rows: 0, cols: 132 }), "validation_error");
    errorOf(await processes.resize(1, { rows: 1, cols: 1 }), "conflict");
  });

  heldTest("job control works in a terminal", async () => {
    await using running = await runningInstance(api, "sleep 100");
    const processes = client(running);
    const spid = await processes.run("exec bash --norc -i", { pty: { rows: 24, cols: 80 }, stdin_open: true });
    const type = (content: string) => processes.stdin(spid, { content });
    // It reports when it is in the foreground, and when it is there again.
    const job = "bash -c 'trap \"echo again-\\$((2+2))\" CONT; echo ready-$((1+1)); while :; do sleep 0.05; done'";
    await type(`${job}\n`);
    await seen(processes, spid, "ready-2");
    await type("\x1a");
    await seen(processes, spid, "Stopped");
    await type("fg\n");
    await seen(processes, spid, "again-4");
    await type("\x03");
    await type("echo now $((40+2))\n");
    await seen(processes, spid, "now 42");
    await type("exit 5\n");
    expect(await ended(running, spid)).toMatchObject({ exit_code: 5 });
  });
});

heldTest("a thousand short processes leave nothing behind", async () => {
  await using running = await runningInstance(api, "sleep 100");
  const processes = client(running);
  for (let round = 0; round < 50; round++) {
    const spids = await Promise.all(Array.from({ length: 20 }, () => processes.run("exit 1")));
    await Promise.all(spids.map((spid) => running.instance.process(spid)?.exit));
  }
  expect(running.instance.processes.map(({ spid }) => spid)).toEqual([1]);
  const page = (await processes.list("?limit=1000")).json as Json[];
  expect(page).toHaveLength(1000);
  expect(page.at(-1)).toMatchObject({ state: "ended", exit_code: 1 });
  expect((await processes.list("?offset=1000")).json).toHaveLength(1);
});

heldTest("the processes of another account's instance are not found", async () => {
  await using running = await runningInstance(api, "sleep 100", { spec: { stdin: "open" } });
  const token = api.foreignToken;
  const { path } = running;
  errorOf(await api.call("POST", `${path}/processes`, { token, json: { command: "true" } }), "not_found");
  errorOf(await api.call("GET", `${path}/processes`, { token }), "not_found");
  errorOf(await api.call("GET", `${path}/processes/1`, { token }), "not_found");
  errorOf(await api.call("DELETE", `${path}/processes/1`, { token }), "not_found");
  errorOf(await api.call("POST", `${path}/processes/1/stdin`, { token, json: { content: "x" } }), "not_found");
  errorOf(await api.call("POST", `${path}/processes/1/stdin/stream`, { token, body: "x" }), "not_found");
});
