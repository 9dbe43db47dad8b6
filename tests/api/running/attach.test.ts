/** Attachments to processes of an instance; the processes are real ones, on this host. */

import { heapStats } from "bun:jsc";
import { afterAll, beforeAll, describe, expect, setDefaultTimeout } from "bun:test";
import { createHash } from "node:crypto";
import { Client } from "../../../src/client/client.ts";
import { SteadyAttachment } from "../../../src/client/connections/steady-attachment.ts";
import { UnreachableError } from "../../../src/client/errors.ts";
import type { OperationId } from "../../../src/domain/ids.ts";
import { Spid } from "../../../src/domain/log-event.ts";
import { ProcessLog } from "../../../src/supervisor/instance/process-log.ts";
import { TimeLimit } from "../../../src/supervisor/instance/time-limit.ts";
import { Api } from "../../support/api/api.ts";
import { AttachedClient } from "../../support/api/attached.ts";
import { heldTest } from "../../support/api/program.ts";
import { queuedInstance, type RunningOptions, runningInstance } from "../../support/api/running.ts";
import { refusedHandshake, socketClient } from "../../support/api/socket.ts";
import { stalledReader } from "../../support/api/stalled-reader.ts";
import { CuttingRelay } from "../../support/guests/cutting-relay.ts";
import { type NativeInstance, nativeInstance, shellSpec } from "../../support/guests/native-instance.ts";
import { quietNetwork } from "../../support/instance-network.ts";
import { pause, until } from "../../support/waiting.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

const open = (path: string, query = "") => AttachedClient.open(api, path, { query });

const OPEN: RunningOptions = { spec: { stdin: "open" } };
const TERMINAL: RunningOptions = { spec: { stdin: "open", terminal: { rows: 24, columns: 80 } } };
const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

describe("GET /instances/{uuid}/processes/{spid}/attach", () => {
  heldTest("returns the output from the beginning, accepts input, and reports the end", async () => {
    await using running = await runningInstance(api, "echo first; echo bad >&2; cat; exit 3", OPEN);
    using client = await open(running.path);
    expect(client.socket.raw.protocol).toBe("v5.channel.k8s.io");
    await client.until("first\n");
    client.type("typed\n");
    await client.until("typed\n");
    client.send(255, Buffer.of(0));
    expect(await client.socket.closed).toMatchObject({ code: 1000 });
    expect([client.of(1).toString(), client.of(2).toString()]).toEqual(["first\ntyped\n", "bad\n"]);
    expect(client.statuses).toEqual([{ exit_code: 3, signal: null, timed_out: false }]);
  });

  heldTest("a terminal gets input, and is resized", async () => {
    await using running = await runningInstance(api, "exec bash --norc", TERMINAL);
    using client = await open(running.path);
    client.type("stty size; tty\r");
    await client.until("24 80");
    client.send(4, Buffer.from(JSON.stringify({ Width: 132, Height: 50 })));
    client.type("stty size\r");
    await client.until("50 132");
    // The program reports that it is ready: bash would read the key as long as the program is not in the foreground.
    client.type("sh -c 'echo ready-$((1+1)); exec sleep 1000'\r");
    await client.until("ready-2");
    client.type("\x03");
    await client.until("^C\r\nbash-");
    client.type("echo done-$((1+1)); exit 7\r");
    await client.socket.closed;
    expect(client.of(1).toString()).toContain("done-2");
    expect(client.statuses).toEqual([{ exit_code: 7, signal: null, timed_out: false }]);
  });

  heldTest("can be closed and resumed from the log, also when the process has ended", async () => {
    await using running = await runningInstance(api, "echo one; read line; echo two; read line; exit 4", OPEN);
    const first = await open(running.path, "?positions=true");
    await first.until("one");
    // The position after the output, not that of an event before it.
    await first.socket.until(() => first.socket.messages.at(-1)?.[0] === 3);
    const { position } = first.statuses.at(-1) as { position: number };
    first.socket.close();
    await first.socket.closed;
    using second = await open(running.path, `?since=${position}`);
    second.type("\n");
    await second.until("two\n");
    expect(second.of(1).toString()).toBe("two\n");
    second.type("\n");
    await running.finish();
    expect(await second.socket.closed).toMatchObject({ code: 1000 });
    using late = await open(running.path);
    await late.socket.closed;
    expect(late.of(1).toString()).toBe("one\ntwo\n");
    using last = await open(running.path, `?since=${position}`);
    await last.socket.closed;
    expect([last.of(1).toString(), last.statuses]).toEqual([
      "two\n",
      [{ exit_code: 4, signal: null, timed_out: false }],
    ]);
  });

  heldTest("many at once get the same, and dropped output is reported", async () => {
    await using running = await runningInstance(api, "read line; seq 1 300000; echo end >&2", OPEN);
    const clients = await Promise.all(Array.from({ length: 10 }, () => open(running.path)));
    clients[0]?.type("\n");
    await Promise.all(clients.map(({ socket }) => socket.closed));
    const expected = Array.from({ length: 300_000 }, (_, index) => `${index + 1}\n`).join("");
    for (const client of clients) {
      expect(client.of(1).toString()).toBe(expected.slice(0, 1_048_576));
      expect(client.of(2).toString()).toBe("end\n");
      const bytes = expected.length - 1_048_576;
      expect(client.statuses[0]).toEqual({ dropped: { stream: "stdout", bytes } });
    }
  });

  heldTest("a request that cannot be obeyed is answered with an error, and the client stays connected", async () => {
    await using running = await runningInstance(api, "echo up; sleep 100");
    using client = await open(running.path);
    client.type("x");
    await client.socket.until(() => client.statuses.length === 1);
    client.send(4, Buffer.from('{"Width":1,"Height":1}'));
    await client.socket.until(() => client.statuses.length === 2);
    expect(client.statuses.map(({ error }) => (error as { error: string }).error)).toEqual(["conflict", "conflict"]);
    await client.until("up");
    client.send(9, Buffer.of(1));
    expect(await client.socket.closed).toMatchObject({ code: 1011 });
    // A long message is refused before it is parsed, whatever it has.
    const long = `{"Width":80,"Height":24,"more":"${"x".repeat(256)}"}`;
    for (const size of ["{}", "no", '{"Width":0,"Height":1}', "null", long]) {
      using wrong = await open(running.path);
      wrong.send(4, Buffer.from(size));
      expect(await wrong.socket.closed).toMatchObject({ code: 1011 });
    }
  });

  heldTest("a message leaves nothing behind after it was obeyed", async () => {
    await using running = await runningInstance(api, "exec bash --norc", TERMINAL);
    using client = await open(running.path);
    const resize = async (count: number, rows: number) => {
      for (let sent = 0; sent < count; sent++) client.send(4, Buffer.from(`{"Width":80,"Height":${rows}}`));
      client.type("stty size\r");
      await client.until(`${rows} 80`);
      Bun.gc(true);
      return heapStats().objectTypeCounts["SlimPromiseReaction"] ?? 0;
    };
    const before = await resize(1, 31);
    expect((await resize(3000, 32)) - before).toBeLessThan(500);
  });

  heldTest("404 and 400 before the upgrade; the end of the instance is reported", async () => {
    const running = await runningInstance(api, "echo up; sleep 100");
    const at = (spid: number | string, query = "") => `${running.path}/processes/${spid}/attach${query}`;
    expect(await refusedHandshake(api, at(1), null)).toMatchObject({ status: 401 });
    expect(await refusedHandshake(api, at(1), await api.issue("alice", ["instances:read"]))).toMatchObject({
      status: 403,
    });
    expect(await refusedHandshake(api, at(1), api.foreignToken)).toMatchObject({ status: 404 });
    expect(await refusedHandshake(api, at(2))).toMatchObject({ status: 404 });
    // The agent has events, but it is not a process.
    api.parts.instances.eventsOf(running.id as OperationId)?.append(Spid.agent, "progress", { step: "copying" });
    for (const query of ["", "?lossless=true"])
      expect(await refusedHandshake(api, at(0, query))).toMatchObject({ status: 404 });
    expect(await refusedHandshake(api, at("x"))).toMatchObject({ status: 400 });
    expect(await refusedHandshake(api, at(1, "?since=-2"))).toMatchObject({ status: 400 });
    using client = await open(running.path);
    await client.until("up");
    await running[Symbol.asyncDispose]();
    api.operations.fail(running.id as OperationId, { error: "unavailable", message: "lost", details: {} });
    using late = await open(running.path);
    expect(await late.socket.closed).toMatchObject({ code: 1011 });
    expect(late.statuses.at(-1)).toMatchObject({ error: { error: "unavailable" } });
  });
});

describe("a lossless attachment", () => {
  heldTest("gets output that the log drops, also when it was opened before the command began", async () => {
    const id = await queuedInstance(api);
    using early = await open(`/v1/instances/${id}`, "?lossless=true");
    await using running = await runningInstance(api, "seq 1 400000; echo end >&2", {}, id);
    expect(await early.socket.closed).toMatchObject({ code: 1000 });
    const expected = Array.from({ length: 400_000 }, (_, index) => `${index + 1}\n`).join("");
    expect(sha256(early.of(1))).toBe(sha256(Buffer.from(expected)));
    expect([early.of(2).toString(), early.statuses]).toEqual([
      "end\n",
      [{ exit_code: 0, signal: null, timed_out: false }],
    ]);
    await running.finish();
    using late = await open(running.path, "?lossless=true");
    await late.socket.closed;
    expect(late.of(1).byteLength).toBe(1_048_576);
    expect(late.statuses[0]).toMatchObject({ dropped: { stream: "stdout" } });
  });

  heldTest("begins with the log, and continues with live output without a gap or a repetition", async () => {
    const script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; read line; seq 1 200000";
    await using running = await runningInstance(api, script, OPEN);
    const clients: AttachedClient[] = [];
    // They attach at arbitrary moments.
    for (let count = 0; count < 4; count++) clients.push(await open(running.path, "?lossless=true"));
    expect(await refusedHandshake(api, `${running.path}/processes/1/attach?lossless=true`)).toMatchObject({
      status: 429,
    });
    await clients[0]?.until("line 2999\n");
    clients[0]?.type("\n");
    await Promise.all(clients.map(({ socket }) => socket.closed));
    const numbers = Array.from({ length: 200_000 }, (_, index) => `${index + 1}\n`).join("");
    const lines = Array.from({ length: 3000 }, (_, index) => `line ${index}\n`).join("");
    for (const client of clients) expect(sha256(client.of(1))).toBe(sha256(Buffer.from(lines + numbers)));
  });

  heldTest("makes the process wait until it leaves; a follower never does", async () => {
    // Standard error shows the progress.
    const script = "for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero; echo $i >&2; done";
    await using running = await runningInstance(api, `read line; ${script}`, OPEN);
    using follower = await open(running.path);
    const stopped = await stalledReader(api, running.path);
    await until("the reader holds the process back", () => api.parts.instances.clients().tapsCount === 1);
    follower.type("\n");
    await follower.until("\0");
    await pause("for a process that is not to come further", 500);
    expect(follower.of(2).toString()).not.toContain("8");
    stopped[Symbol.dispose]();
    expect(await follower.socket.closed).toMatchObject({ code: 1000 });
    expect(follower.of(2).toString()).toEndWith("8\n");
    expect(api.parts.instances.clients().tapsCount).toBe(0);
  });

  heldTest("reports what it missed of a process that did not wait for it, and the end", async () => {
    await using running = await runningInstance(api, "read line; echo late; exit 3", OPEN);
    using client = await open(running.path, "?lossless=true");
    await until("it is attached", () => running.command.taps.count === 1);
    running.command.taps.letGo();
    client.type("\n");
    expect(await client.socket.closed).toMatchObject({ code: 1000 });
    expect(client.of(1).byteLength).toBe(0);
    expect(client.statuses).toEqual([
      { dropped: { stream: "stdout", bytes: 5 } },
      { exit_code: 3, signal: null, timed_out: false },
    ]);
  });

  heldTest("continues with the machine that replaces a lost one", async () => {
    const id = await queuedInstance(api);
    using early = await open(`/v1/instances/${id}`, "?lossless=true");
    api.operations.start(id);
    using events = api.parts.eventLogs.open(id);
    await using _written = { [Symbol.asyncDispose]: () => events.end() };
    using run = api.parts.instances.open(id, {
      limit: new TimeLimit(60_000),
      hostname: "box",
      events,
      network: quietNetwork(),
    });
    const log = new ProcessLog(events, { spid: 1, truncateOutputAtBytes: 10 });
    const spec = { ...shellSpec("read line; echo $line from the second; exit 2"), stdin: "open" as const };
    const start = ({ instance }: NativeInstance) => {
      run.enter(instance);
      return instance.start(spec, log.sink(spec));
    };
    const first = await nativeInstance();
    const lost = start(first);
    await first[Symbol.asyncDispose]();
    await lost.exit.catch(() => undefined);
    await using second = await nativeInstance();
    start(second);
    early.type("typed\n");
    expect(await early.socket.closed).toMatchObject({ code: 1000 });
    expect(early.of(1).toString()).toBe("typed from the second\n");
    expect(early.statuses).toEqual([{ exit_code: 2, signal: null, timed_out: false }]);
  });

  heldTest("clients that connect and disconnect leave nothing behind", async () => {
    await using running = await runningInstance(api, "while :; do echo line; sleep 0.01; done");
    for (let count = 0; count < 40; count++) {
      const client = await open(running.path, count % 2 === 0 ? "?lossless=true" : "");
      await client.until("line");
      if (count % 3 === 0) client.socket.close();
      else client.socket.raw.terminate();
      await client.socket.closed;
    }
    await until("no client reads", () => api.parts.eventLogs.counts.readers === 0);
    await until("no client holds the process back", () => api.parts.instances.clients().tapsCount === 0);
  });

  heldTest("a client whose connection is cut anywhere gets every byte once", async () => {
    const script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done; read line; exit 5";
    await using running = await runningInstance(api, script, OPEN);
    const whole = { stdout: "", stderr: "" };
    for (let line = 1; line <= 3000; line++) {
      whole.stdout += `out ${line}\n`;
      whole.stderr += `err ${line}\n`;
    }
    // The connections are cut before, in and after the handshake, at several places of the output; the last one stays.
    const cuts = [0, 1, 150, 400, 1000, 5000, 20_011, 60_001];
    await using relay = await CuttingRelay.open(api.url, cuts);
    for (const lossless of [false, true]) {
      relay.cuts.splice(0, relay.cuts.length, ...cuts);
      let lostCount = 0;
      const client = new Client({ ...socketClient(api), url: relay.url });
      const name = { instance: running.id, spid: 1 };
      const onLost = () => void lostCount++;
      using attachment = await openUntil(() => SteadyAttachment.open(client, name, { lossless, onLost }));
      const got = { stdout: "", stderr: "" };
      for await (const { stream, bytes } of attachment.output()) {
        got[stream] += Buffer.from(bytes).toString();
        const isAll = got.stdout.length === whole.stdout.length && got.stderr.length === whole.stderr.length;
        // The second client connects after the end of the process.
        if (isAll && !lossless) await running.command.input.write(Buffer.from("\n"), new AbortController().signal);
      }
      expect(got).toEqual(whole);
      expect(attachment.exitCode).toBe(5);
      expect(relay.cuts).toEqual([]);
      expect(lostCount).toBeGreaterThan(0);
    }
    await until("no client reads", () => api.parts.eventLogs.counts.readers === 0);
  });
});

/** Opens a connection, the first of which are cut. */
async function openUntil<T>(open: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await open();
    } catch (error) {
      if (!(error instanceof UnreachableError)) throw error;
    }
  }
}
