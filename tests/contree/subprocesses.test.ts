import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { UNKNOWN_UUID } from "../support/api/samples.ts";
import { CONTREE, Contree, contreeError } from "../support/contree/contree.ts";
import {
  bytesOfStream,
  type ContreeEvent,
  contreeEvents,
  followUntil,
  outputOfEvents,
} from "../support/contree/events.ts";
import { endedOperation, operationOf, type Request, ran, spawned } from "../support/contree/runs.ts";

// A busy host boots an emulated machine in many times the usual three seconds.
setDefaultTimeout(180_000);

let contree: Contree;
/** a command that runs until it is cancelled, whose standard input is closed */
let sleeping = "";
/** an instance that has ended */
let over = "";
/** the id of an import */
let imported = "";

beforeAll(async () => {
  contree = await Contree.start();
  over = (await ran(contree, { command: "echo out; echo err >&2; kill -TERM $$", shell: true })).operation.uuid;
  sleeping = await spawned(contree, { command: "echo begun; sleep 3000", shell: true });
  await followUntil(contree, sleeping, ({ type }) => type === "stdout");
  const { json } = await contree.call("GET", `/images?uuid=${contree.image}`);
  imported = json.images[0].operation_uuid;
});
afterAll(() => contree[Symbol.asyncDispose]());

const at = (id: string, spid: number | string, rest = "") => `/operations/${id}/subprocesses/${spid}${rest}`;
const start = (id: string, request: Request) =>
  contree.call("POST", `/operations/${id}/subprocesses`, { json: request });
const stdin = (id: string, spid: number | string, json: Request) =>
  contree.call("POST", at(id, spid, "/stdin"), { json });
const signal = (id: string, spid: number | string, query = "") => contree.call("DELETE", at(id, spid, query));
const get = async (id: string, spid: number) => (await contree.call("GET", at(id, spid))).json;
const started = async (request: Request, id = sleeping): Promise<number> => {
  const answer = await start(id, request);
  if (answer.status !== 201) throw new Error(answer.text);
  expect(answer.headers.get("location")).toBe(`/contree/v1${at(id, answer.json.spid)}`);
  return answer.json.spid;
};
const ended = async (spid: number, id = sleeping) => {
  await followUntil(contree, id, (event) => event.type === "exit" && event.spid === spid);
  return await get(id, spid);
};

describe("POST /operations/{uuid}/subprocesses", () => {
  test("runs an additional command, with a number that is never reused", async () => {
    const spid = await started({ command: "echo $0 $PWD; echo err >&2; exit 4", shell: true, cwd: "/tmp" });
    expect(spid).toBeGreaterThanOrEqual(2);
    const result = await ended(spid);
    expect(bytesOfStream(result.stdout).toString()).toBe("/bin/sh /tmp\n");
    expect(bytesOfStream(result.stderr).toString()).toBe("err\n");
    expect(result.state).toMatchObject({ exit_code: 4, signal: -1, timed_out: false });
    expect(Object.keys(result.resources)).toHaveLength(16);
    expect(await started({ command: "true" })).toBeGreaterThan(spid);
    const own = await contreeEvents(contree, sleeping, `?spid=${spid}`);
    expect([...new Set(own.map(({ type }) => type))].sort()).toEqual(["exit", "spawn", "stderr", "stdout"]);
    expect(own[0]?.data).toMatchObject({ shell: true, timeout: 0, cwd: "/tmp" });
  });

  test("null and unknown fields are ignored; standard input is closed after its value", async () => {
    const none = { args: null, env: null, cwd: "", uid: null, gid: null, truncate_output_at: null, shell: null };
    const spid = await started({ command: "cat", ...none, stdin: { value: "given" }, timeout: 1, result: null });
    expect((await ended(spid)).stdout).toEqual({ value: "given", encoding: "ascii", truncated: false });
    const limited = await started({ command: "seq", args: ["9"], truncate_output_at: 4 });
    expect((await ended(limited)).stdout).toEqual({ value: "1\n2\n", encoding: "ascii", truncated: true });
  });

  test.each([
    [{}, "command"],
    [{ command: 5 }, "command"],
    [{ command: "x", args: [null] }, "args"],
    [{ command: "x", stdin: { value: 1 } }, "value"],
    [{ command: "x", stdin: { value: "x".repeat(10_485_761) } }, "stdin"],
    [{ command: "x", uid: "root" }, "uid"],
  ])("%j is 400", async (request, field) => {
    expect(contreeError(await start(sleeping, request), 400, "validation_error")).toContain(field);
  });

  test("passes up to 10 MiB of standard input, of which a process need not read all", async () => {
    for (const bytes of [65_536, 65_537, 10_485_760]) {
      const value = Buffer.alloc(bytes, "0123456789abcdef").toString("base64");
      const spid = await started({ command: "sha256sum", stdin: { value, encoding: "base64" } });
      const digest = new Bun.CryptoHasher("sha256").update(Buffer.from(value, "base64")).digest("hex");
      expect((await ended(spid)).stdout.value).toBe(`${digest}  -\n`);
    }
    const long = { value: "x".repeat(3_000_000) };
    const deaf = await started({ command: "head", args: ["-c", "5"], stdin: long });
    expect(await ended(deaf)).toMatchObject({ stdout: { value: "xxxxx" }, state: { exit_code: 0 } });
    const open = await started({ command: "wc", args: ["-c"], stdin: { ...long, close: false } });
    expect((await stdin(sleeping, open, { value: "y" })).status).toBe(204);
    expect((await ended(open)).stdout.value.trim()).toBe("3000001");
  });

  test("a client that leaves before its input was read leaves no process", async () => {
    const leaving = new AbortController();
    const { url, token } = contree.appliance;
    const sent = fetch(`${url}${CONTREE}/operations/${sleeping}/subprocesses`, {
      ...{ method: "POST", signal: leaving.signal, headers: { authorization: `Bearer ${token}` } },
      body: JSON.stringify({ command: "sleep", args: ["2999"], stdin: { value: "x".repeat(3_000_000) } }),
    });
    const isIt = ({ type, data }: ContreeEvent) => type === "spawn" && data.args[0] === "2999";
    const spid = (await followUntil(contree, sleeping, isIt)).at(-1)?.spid ?? 0;
    leaving.abort();
    expect(await sent.catch((error: Error) => error.name)).toBe("AbortError");
    expect((await ended(spid)).state).toMatchObject({ exit_code: -1, signal: 9 });
  });

  test("404 of an unknown operation, 409 of one that has ended or is not an instance", async () => {
    contreeError(await start(UNKNOWN_UUID, { command: "true" }), 404, "not_found");
    contreeError(await start(over, { command: "true" }), 409, "conflict");
    contreeError(await start(imported, { command: "true" }), 409, "conflict");
    contreeError(await start("x", { command: "true" }), 400, "validation_error");
  });
});

describe("GET /operations/{uuid}/subprocesses/{spid}", () => {
  test("has the command, too, while it runs and after its end", async () => {
    expect(await get(sleeping, 1)).toMatchObject({
      stdout: { value: "begun\n", encoding: "ascii", truncated: false },
      state: { exit_code: -1, signal: -1, timed_out: false },
      resources: { elapsed_time: 0, max_rss: 0 },
    });
    const { metadata } = await operationOf(contree, over);
    expect(await get(over, 1)).toEqual(metadata.result);
    expect(metadata.result).toMatchObject({ stdout: { value: "out\n" }, state: { exit_code: -1, signal: 15 } });
  });

  test("of one that runs has its output so far, and no end", async () => {
    const spid = await started({ command: "echo so far; sleep 3000", shell: true });
    await followUntil(contree, sleeping, (event) => event.spid === spid && event.type === "stdout");
    expect(await get(sleeping, spid)).toMatchObject({
      ...{ stdout: { value: "so far\n" }, state: { exit_code: -1, signal: -1 } },
    });
    expect((await signal(sleeping, spid)).status).toBe(204);
  });

  test("404 of an unknown process, 400 of a malformed number", async () => {
    for (const spid of [0, 999]) contreeError(await contree.call("GET", at(sleeping, spid)), 404, "not_found");
    contreeError(await contree.call("GET", at(over, 7)), 404, "not_found");
    contreeError(await contree.call("GET", at(UNKNOWN_UUID, 1)), 404, "not_found");
    contreeError(await contree.call("GET", at(imported, 1)), 404, "not_found");
    for (const spid of ["-1", "one", "01"]) {
      contreeError(await contree.call("GET", at(sleeping, spid)), 400, "validation_error");
    }
  });
});

describe("DELETE /operations/{uuid}/subprocesses/{spid}", () => {
  test.each([
    ["", 9],
    ["?signal=TERM", 15],
    ["?signal=SIGTERM", 15],
    ["?signal=15", 15],
    ["?signal=int", 2],
  ])("%s sends signal %d to the group", async (query, number) => {
    const spid = await started({ command: "echo on; sleep 3000 | sleep 3000", shell: true });
    await followUntil(contree, sleeping, (event) => event.spid === spid && event.type === "stdout");
    expect((await signal(sleeping, spid, query)).status).toBe(204);
    expect((await ended(spid)).state).toMatchObject({ exit_code: -1, signal: number, timed_out: false });
    contreeError(await signal(sleeping, spid), 404, "not_found");
  });

  test("400 of an unknown signal, 404 of no process, 409 of no running instance", async () => {
    for (const query of ["?signal=", "?signal=0", "?signal=65", "?signal=NONE", "?signal=-9"]) {
      contreeError(await signal(sleeping, 1, query), 400, "validation_error");
    }
    contreeError(await signal(sleeping, 999), 404, "not_found");
    contreeError(await signal(sleeping, 0), 404, "not_found");
    contreeError(await signal(over, 1), 409, "conflict");
    contreeError(await signal(imported, 1), 409, "conflict");
    contreeError(await signal(UNKNOWN_UUID, 1), 404, "not_found");
  });

  test("the end of the command ends the operation and its additional processes", async () => {
    const id = await spawned(contree, {
      command: "trap 'echo bye; exit 5' TERM; echo on; while :; do sleep 0.05; done",
      shell: true,
    });
    await followUntil(contree, id, ({ type }) => type === "stdout");
    const additional = await started({ command: "sleep", args: ["3000"] }, id);
    expect((await signal(id, 1, "?signal=TERM")).status).toBe(204);
    const { metadata, status } = await endedOperation(contree, id);
    expect([status, metadata.result.state.exit_code, metadata.result.stdout.value]).toEqual([
      "SUCCESS",
      5,
      "on\nbye\n",
    ]);
    expect((await get(id, additional)).state).toMatchObject({ exit_code: -1, signal: 9 });
    const killed = await spawned(contree, { command: "sleep 3000 & echo on; wait", shell: true });
    await followUntil(contree, killed, ({ type }) => type === "stdout");
    expect((await signal(killed, 1)).status).toBe(204);
    expect((await endedOperation(contree, killed)).metadata.result.state).toMatchObject({ exit_code: -1, signal: 9 });
  });
});

describe("POST /operations/{uuid}/subprocesses/{spid}/stdin", () => {
  test("writes to a command whose input was left open, until it is closed", async () => {
    const id = await spawned(contree, {
      ...{ command: "cat; echo end", shell: true, stdin: { value: "one ", encoding: "ascii", close: false } },
    });
    await followUntil(contree, id, ({ spid }) => spid === 1);
    expect((await stdin(id, 1, { value: "two ", close: false })).status).toBe(204);
    const bytes = Buffer.from([0, 0xff, 0xc3, 0x28]);
    const encoded = { value: bytes.toString("base64"), encoding: "base64" };
    expect((await stdin(id, 1, { ...encoded, close: false })).status).toBe(204);
    expect((await stdin(id, 1, { value: "é", encoding: null, close: null, truncated: false })).status).toBe(204);
    const { metadata } = await endedOperation(contree, id);
    expect(bytesOfStream(metadata.result.stdout)).toEqual(
      Buffer.concat([Buffer.from("one two "), bytes, Buffer.from("éend\n")]),
    );
    contreeError(await stdin(id, 1, { value: "late" }), 410, "conflict");
  });

  test("of an additional process, too; an empty value only closes it", async () => {
    const spid = await started({ command: "sha256sum", stdin: { value: "", close: false } });
    const big = Buffer.alloc(3_000_000, "abcdefg\n");
    const value = big.toString("base64");
    expect((await stdin(sleeping, spid, { value, encoding: "base64", close: false })).status).toBe(204);
    expect((await stdin(sleeping, spid, { value: "" })).status).toBe(204);
    const digest = new Bun.CryptoHasher("sha256").update(big).digest("hex");
    expect((await ended(spid)).stdout.value).toBe(`${digest}  -\n`);
    contreeError(await stdin(sleeping, spid, { value: "late" }), 404, "not_found");
  });

  test("409 of a closed input, 404 of an unknown process, 409 of an operation without an instance", async () => {
    contreeError(await stdin(sleeping, 1, { value: "x" }), 409, "conflict");
    contreeError(await stdin(sleeping, 999, { value: "x" }), 404, "not_found");
    contreeError(await stdin(UNKNOWN_UUID, 1, { value: "x" }), 404, "not_found");
    contreeError(await stdin(imported, 1, { value: "x" }), 409, "conflict");
    contreeError(await stdin(over, 1, { value: "x" }), 410, "conflict");
    const spid = await started({ command: "sleep", args: ["3000"], stdin: { value: "", close: false } });
    expect((await stdin(sleeping, spid, { value: "x" })).status).toBe(204);
    contreeError(await stdin(sleeping, spid, { value: "x" }), 409, "conflict");
    await signal(sleeping, spid);
  });

  test.each([
    [{}, "value"],
    [{ value: 1 }, "value"],
    [{ value: "x", encoding: "hex" }, "encoding"],
    [{ value: "%%", encoding: "base64" }, "value"],
    [{ value: "\udfff" }, "value"],
    [{ value: "x", close: "yes" }, "close"],
  ])("%j is 400", async (request, field) => {
    expect(contreeError(await stdin(sleeping, 1, request), 400, "validation_error")).toContain(field);
  });
});

test("an instance that has not begun is too early, and nothing was done", async () => {
  const ids = await Promise.all(
    Array.from({ length: 24 }, () => spawned(contree, { command: "sleep", args: ["3000"] })),
  );
  const waiting = [];
  for (const id of ids) if ((await operationOf(contree, id)).status === "PENDING") waiting.push(id);
  const id = waiting.at(-1) ?? "";
  const answers = [
    await start(id, { command: "true" }),
    await contree.call("GET", at(id, 1)),
    await signal(id, 1),
    await stdin(id, 1, { value: "x" }),
  ];
  for (const each of ids) await contree.call("DELETE", `/operations/${each}`);
  for (const { status, headers, json } of answers) {
    expect([status, json.status, json.code, headers.get("retry-after")]).toEqual([425, 425, "conflict", "1"]);
  }
  expect(outputOfEvents(await contreeEvents(contree, id, "?follow=1"), 1, "stdout").byteLength).toBe(0);
});

test("a request waits for the command of an instance that has its machine: some clients never repeat it", async () => {
  const begun = async (command: string): Promise<string> => {
    const id = await spawned(contree, { command, args: ["3000"] });
    for (;;) if ((await operationOf(contree, id)).status !== "PENDING") return id;
  };
  const first = await begun("sleep");
  expect(await started({ command: "true" }, first)).toBeGreaterThanOrEqual(2);
  const second = await begun("sleep");
  expect((await signal(second, 1, "?signal=TERM")).status).toBe(204);
  expect((await endedOperation(contree, second)).metadata.result.state.signal).toBe(15);
  // One whose command cannot start has an end, too.
  const third = await begun("no-such-program");
  expect([201, 409]).toContain((await start(third, { command: "true" })).status);
  expect((await contree.call("DELETE", `/operations/${first}`)).status).toBe(202);
});

test("reading needs another scope than changing", async () => {
  const reader = await contree.appliance.createToken("tester", "--scope", "operations:read");
  const writer = await contree.appliance.createToken("tester", "--scope", "instances:exec");
  expect((await contree.call("GET", at(over, 1), { token: reader })).status).toBe(200);
  contreeError(await contree.call("GET", at(over, 1), { token: writer }), 403, "forbidden");
  const calls: [string, string, Request | undefined][] = [
    ["POST", `/operations/${over}/subprocesses`, { command: "true" }],
    ["DELETE", at(over, 1), undefined],
    ["POST", at(over, 1, "/stdin"), { value: "x" }],
  ];
  for (const [method, path, json] of calls) {
    contreeError(await contree.call(method, path, { token: reader, json }), 403, "forbidden");
    expect([409, 410]).toContain((await contree.call(method, path, { token: writer, json })).status);
  }
  const stranger = await contree.appliance.createToken("another-account");
  contreeError(await contree.call("GET", at(over, 1), { token: stranger }), 404, "not_found");
});
