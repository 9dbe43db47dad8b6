/** Requests to an agent that no client should send: each has an answer in the shape of the dialect, and holds no place. */

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { requireSandbox } from "../../../../src/db/sandboxes/rows.ts";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import type { AccountId } from "../../../../src/domain/ids.ts";
import { type E2bSandbox, E2bScene } from "../../../support/e2b/scene.ts";
import { until } from "../../../support/waiting.ts";

const accounts = new Accounts();
let scene: E2bScene;
let sandbox: E2bSandbox;
let root: string;
const here = (path: string) => join(root, path);

beforeAll(async () => {
  scene = await E2bScene.start({}, { accounts });
  sandbox = await scene.create();
  root = sandbox.machine.root;
  for (const directory of ["etc", "bin", "tmp", "dev", "root", "joined"]) mkdirSync(here(directory));
  writeFileSync(here("etc/passwd"), "root:x:0:0::/root:/bin/sh\n");
  for (const path of ["bin/sh", "file"]) writeFileSync(here(path), "0123456789");
  execFileSync("mkfifo", [here("fifo")]);
  execFileSync("mknod", [here("dev/zero"), "c", "1", "5"]);
  symlinkSync("loop", here("loop"));
  symlinkSync("joined", here("to-joined"));
}, 120_000);
afterAll(async () => {
  expect(scene.errors).toEqual([]);
  await until(
    "all places are free",
    () => accounts.used("alice", "guestFiles") + accounts.used("alice", "inputs") === 0,
  );
  await scene[Symbol.asyncDispose]();
});

/** A frame of a stream, whose length may be wrong. */
function frame(
  message: string | object,
  { flags = 0, bytes }: { flags?: number; bytes?: number } = {},
): Buffer<ArrayBuffer> {
  const text = Buffer.from(typeof message === "string" ? message : JSON.stringify(message), "latin1");
  const head = Buffer.alloc(5);
  head[0] = flags;
  head.writeUInt32BE(bytes ?? text.byteLength, 1);
  return Buffer.concat([head, text]);
}

const command = (more: object = {}) => ({
  process: { cmd: "/bin/sh", args: ["-c", "echo text"], ...more },
  stdin: false,
});
const deep = `{"path":${"[".repeat(100_000)}`;
const list = "/process.Process/List";
const stat = "/filesystem.Filesystem/Stat";

describe("a unary call", () => {
  const json = { "content-type": "application/json" };
  test.each([
    ...["", "null", "[]", "1", '"x"', "{", "\xff", deep].map((body) => [list, body, json, 400] as const),
    ...["proto", "grpc"].map((type) => [list, "{}", { "content-type": `application/${type}` }, 400] as const),
    ...["-1", "NaN", "1e3", "0x10", "99999999999"].map(
      (ms) => [list, "{}", { ...json, "connect-timeout-ms": ms }, 400] as const,
    ),
    ...["1", '"a\\u0000b"', `"/${"a/".repeat(4000)}"`, `"${"a".repeat(300)}"`, '"~root"', '"/file/x"'].map(
      (path) => [stat, `{"path":${path}}`, json, 400] as const,
    ),
    [stat, '{"path":"/file","path":"/none"}', json, 404],
    [stat, '{"__proto__":{"path":"/file"},"path":"/none"}', json, 404],
    ...["-1", "1.5", "1e400", '"99999999999999999999"', "true", "[]"].map(
      (depth) => ["/filesystem.Filesystem/ListDir", `{"path":"/","depth":${depth}}`, json, 400] as const,
    ),
    ["/filesystem.Filesystem/Remove", '{"path":"/"}', json, 400],
    ["/filesystem.Filesystem/Move", '{"source":"/","destination":"/x"}', json, 400],
    ["/filesystem.Filesystem/GetWatcherEvents", '{"watcherId":"__proto__"}', json, 404],
    ...['{"pid":-1}', '{"pid":4294967296}', "[]", '{"tag":1}'].map(
      (process) => ["/process.Process/SendSignal", `{"process":${process},"signal":9}`, json, 400] as const,
    ),
    ["/process.Process/SendSignal", '{"process":{"pid":1},"signal":9}', json, 404],
  ])("%s %s %j: the answer is %d with the code of a call", async (path, body, headers, status) => {
    const answer = await sandbox.envd("POST", path, { headers, body: Buffer.from(body, "latin1") });
    expect([answer.status, answer.json]).toEqual([
      status,
      { code: status === 400 ? "invalid_argument" : "not_found", message: expect.any(String) },
    ]);
  });

  test("is made by POST alone", async () => {
    for (const method of ["GET", "PUT", "DELETE"]) {
      const { status, json } = await sandbox.envd(method, list);
      expect([status, json.code]).toEqual([405, "unimplemented"]);
    }
  });
});

describe("a stream", () => {
  const type = { "content-type": "application/connect+json" };
  const stream = (method: string, body: Uint8Array<ArrayBuffer>, headers: Record<string, string> = {}) =>
    sandbox.envd("POST", `/${method}`, { headers: { ...type, ...headers }, body });
  const START = "process.Process/Start";

  test.each([
    [START, "compressed", frame(command(), { flags: 1 }), "unimplemented"],
    [START, "an end", frame(command(), { flags: 2 }), "invalid_argument"],
    [START, "too long", frame("", { bytes: 0xff_ff_ff_ff }), "resource_exhausted"],
    [START, "cut", frame("{", { bytes: 10 }), "invalid_argument"],
    [START, "a piece of a head", Buffer.from([0]), "invalid_argument"],
    [START, "none", Buffer.alloc(0), "invalid_argument"],
    [START, "empty", frame(""), "invalid_argument"],
    [START, "two", Buffer.concat([frame(command()), frame(command())]), "invalid_argument"],
    [START, "with a byte behind it", Buffer.concat([frame(command()), Buffer.from("x")]), "invalid_argument"],
    ...["[1]", "null", '"\xff"', deep].map(
      (text) => [START, text.slice(0, 9), frame(text), "invalid_argument"] as const,
    ),
    ...[
      {},
      command({ cmd: "/none" }),
      command({ cmd: "a\0b" }),
      command({ args: [1] }),
      command({ args: ["a\0b"] }),
    ].map((message) => [START, JSON.stringify(message), frame(message), "invalid_argument"] as const),
    ...[{ "A=B": "" }, { "": "" }, { A: "a\0b" }, { A: 1 }].map(
      (envs) => [START, JSON.stringify(envs), frame(command({ envs })), "invalid_argument"] as const,
    ),
    ...["/none", "/file", "a\0b", 1].map(
      (cwd) => [START, `in ${cwd}`, frame(command({ cwd })), "invalid_argument"] as const,
    ),
    [START, "a terminal", frame({ ...command(), pty: { size: { cols: -1 } } }), "invalid_argument"],
    [START, "long", frame(command({ args: ["x".repeat(3_000_000)] })), "invalid_argument"],
    ["process.Process/Connect", "no process", frame({ process: { pid: 0 } }), "not_found"],
    ["process.Process/StreamInput", "no start", frame({ data: { input: {} } }), "invalid_argument"],
    ["filesystem.Filesystem/WatchDir", "a file", frame({ path: "/file" }), "invalid_argument"],
  ])("%s with a message that is %s ends with an error", async (method, _what, body, code) => {
    const { status, bytes } = await stream(method, body);
    expect([status, bytes[0], JSON.parse(Buffer.from(bytes.subarray(5)).toString()).error]).toEqual([
      ...[200, 2],
      { code, message: expect.any(String) },
    ]);
  });

  test("has one codec, which its client could read", async () => {
    for (const other of ["application/connect+proto", "application/grpc-web", "application/json", ""]) {
      const { status, json } = await stream(START, frame(command()), { "content-type": other });
      expect([other, status, json.code]).toEqual([other, 415, 415]);
    }
  });

  test("with a malformed limit starts nothing", async () => {
    const { status, json } = await stream(START, frame(command()), { "connect-timeout-ms": "-5" });
    expect([status, json.code]).toEqual([400, "invalid_argument"]);
  });
});

describe("a path of another kind than a file", () => {
  const raw = { "content-type": "application/octet-stream" };
  const paths = ["/fifo", "/dev/zero", "/loop", "/tmp", "/file/x", "/", "", "a%00b", `/${"a".repeat(300)}`, "~root/x"];

  test.each(paths)("%j is refused in both directions, at once", async (path) => {
    for (const [method, more] of [
      ["GET", {}],
      ["HEAD", {}],
      ["GET", { headers: { range: "bytes=0-0" } }],
      ["POST", { headers: raw, body: "text" }],
    ] as const) {
      expect([method, (await sandbox.envd(method, `/files?path=${path}`, more)).status]).toEqual([method, 400]);
    }
  });

  test("cannot be a source of joined files", async () => {
    for (const path of ["/fifo", "/dev/zero", "/loop", "/tmp"]) {
      const json = { source_paths: [path], destination: "/whole" };
      expect([path, (await sandbox.envd("POST", "/files/compose", { json })).status]).toEqual([path, 400]);
    }
    const json = { source_paths: ["/none"], destination: "/whole" };
    const { status, json: answer } = await sandbox.envd("POST", "/files/compose", { json });
    expect([status, answer.message]).toEqual([404, "/none: No such file or directory"]);
    expect(readdirSync(root)).not.toContain("whole");
  });
});

test("a joined file stays where one of its sources is the same file by another path", async () => {
  writeFileSync(here("joined/a"), "1");
  writeFileSync(here("joined/b"), "2");
  const json = { source_paths: ["/joined/b", "/to-joined/a"], destination: "/joined/a" };
  expect((await sandbox.envd("POST", "/files/compose", { json })).status).toBe(200);
  expect([readFileSync(here("joined/a"), "utf8"), readdirSync(here("joined"))]).toEqual(["21", ["a"]]);
});

describe("a form", () => {
  const part = (filename: string, content: string, name = "file") =>
    `--b\r\nContent-Disposition: form-data; name="${name}"; filename="${filename}"\r\n\r\n${content}\r\n`;
  const upload = (body: string, boundary = "boundary=b", path = "") =>
    sandbox.envd("POST", `/files${path}`, {
      headers: { "content-type": `multipart/form-data; ${boundary}` },
      body: Buffer.from(body, "latin1"),
    });

  test.each([
    ["no boundary", part("/tmp/x", "y"), "a=b"],
    ["an empty boundary", part("/tmp/x", "y"), "boundary="],
    ["a long boundary", part("/tmp/x", "y"), `boundary=${"a".repeat(71)}`],
    ["NUL in a name", `${part("/tmp/a\0b", "y")}--b--`, undefined],
    ["a file without a name", "--b\r\nContent-Disposition: form-data; name=file\r\n\r\n\r\n--b--", undefined],
    ["the same file twice", `${part("/tmp/s", "y")}${part("/tmp/../tmp/s", "y")}--b--`, undefined],
    ["too many parts", `${part("/tmp/x", "", "other").repeat(10_000)}--b--`, undefined],
    ["a long head", `--b\r\nX: ${"a".repeat(100_000)}\r\n\r\n\r\n--b--`, undefined],
    ["lines without CR", `${part("/tmp/x", "y")}--b--`.replaceAll("\r", ""), undefined],
    ["no end", part("/tmp/x", "y"), undefined],
    ["nothing", "", undefined],
  ])("with %s is refused", async (_what, body, boundary) => {
    const { status, json } = await upload(body, boundary);
    expect([status, json]).toEqual([400, { code: 400, message: expect.any(String) }]);
  });

  test("may have a name with any other character, and parts that look like forms", async () => {
    const inner = "--c\r\n\r\nx\r\n--c--";
    expect((await upload(`${part("/tmp/a\nb;=", inner)}--b--`)).status).toBe(200);
    expect(readFileSync(here("tmp/a\nb;="), "utf8")).toBe(inner);
  });
});

test("a compressed body expands to the size of the disk at most, and must be whole", async () => {
  const { diskBytes } = requireSandbox(scene.api.parts.db, "alice" as AccountId, sandbox.uuid).resources;
  const bomb = gzipSync(Buffer.alloc(diskBytes + 1), { level: 1 });
  const headers = { "content-type": "application/octet-stream", "content-encoding": "gzip" };
  const put = async (body: Uint8Array) =>
    (await sandbox.envd("POST", "/files?path=/tmp/z", { headers, body: new Uint8Array(body) })).status;
  expect(await put(bomb)).toBe(507);
  for (const wrong of [gzipSync("a".repeat(999)).subarray(0, 15), Buffer.from("text"), Buffer.alloc(0)]) {
    expect(await put(wrong)).toBe(400);
  }
  expect(statSync(here("tmp/z")).size).toBeLessThanOrEqual(diskBytes);
});
