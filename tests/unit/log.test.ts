import { describe, expect, test } from "bun:test";
import { ApiError } from "../../src/domain/errors.ts";
import { createLog, type LogLevel, type LogOptions, REDACTED, silentLog } from "../../src/log.ts";

const TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLWJ5dGVz";

function capture(options: Partial<LogOptions> = {}) {
  const lines: string[] = [];
  const log = createLog({
    level: "debug",
    format: "json",
    write: (line) => void lines.push(line),
    clock: () => Date.UTC(2026, 10, 20, 10, 30),
    ...options,
  });
  return { log, lines, only: () => JSON.parse(lines.join("")) as Record<string, unknown> };
}

describe("json", () => {
  test("writes one object per line: time, level and message first, then the fields", () => {
    const { log, lines } = capture();
    log.info("operation ended", { status: "SUCCESS", durationMs: 12 });
    expect(lines).toEqual([
      '{"time":"2026-11-20T10:30:00.000Z","level":"info","message":"operation ended","status":"SUCCESS","durationMs":12}\n',
    ]);
  });

  test("a field cannot replace time, level or message", () => {
    const { log, only } = capture();
    log.warn("real", { message: "forged", level: "debug", time: "never" });
    expect(only()).toEqual({ time: "2026-11-20T10:30:00.000Z", level: "warn", message: "real" });
  });

  test("a message with a newline stays on one line", () => {
    const { log, lines } = capture();
    log.info('a\n{"level":"error"}');
    expect(lines.join("").match(/\n/g)).toHaveLength(1);
  });

  test("an error is written with its causes and its own fields", () => {
    const { log, only } = capture();
    const cause = Object.assign(new Error("connection refused"), { errno: 111 });
    log.error("import failed", { error: new ApiError("unavailable", "registry is down", { host: "r" }, { cause }) });
    expect(only()["error"]).toMatchObject({
      name: "ApiError",
      code: "unavailable",
      message: "registry is down",
      details: { host: "r" },
      cause: { message: "connection refused", errno: 111 },
      stack: expect.arrayContaining([expect.stringContaining("log.test.ts")]),
    });
  });

  test("bytes, big integers, dates and cycles are written", () => {
    const { log, only } = capture();
    const cycle: Record<string, unknown> = {};
    cycle["self"] = cycle;
    log.info("odd", { bytes: new Uint8Array(3), big: 2n ** 60n, date: new Date(0), cycle });
    expect(only()).toMatchObject({ bytes: "[3 bytes]", big: "1152921504606846976", date: "1970-01-01T00:00:00.000Z" });
  });
});

describe("secrets", () => {
  const SECRETS = { password: "p", Authorization: "Bearer x", credentials: { username: "u" }, stdin: "s", token: "t" };

  test.each(Object.entries(SECRETS))("the field %s is masked at every depth and in a child", (name, value) => {
    const { log, lines } = capture();
    log.child({ [name]: value }).info("request", { body: [{ [name]: value }] });
    const parsed = JSON.parse(lines.join(""));
    expect([parsed[name], parsed.body[0][name]]).toEqual([REDACTED, REDACTED]);
  });

  test("a web token is masked inside any text, including the message", () => {
    const { log, lines } = capture();
    log.error(`bad header: Bearer ${TOKEN}`, { url: `/x?t=${TOKEN}`, error: new Error(TOKEN) });
    expect(lines.join("")).not.toContain(TOKEN);
    expect(lines.join("")).not.toContain("c2lnbmF0dXJl");
  });

  test("booleans about secrets are written", () => {
    const { log, only } = capture();
    log.info("import", { hadCredentials: true, tokenId: "0197", environment: "x" });
    expect(only()).toMatchObject({ hadCredentials: true, tokenId: "0197", environment: "x" });
  });
});

describe("text", () => {
  test("puts the fields after the message", () => {
    const { log, lines } = capture({ format: "text" });
    log.child({ operation: "0197" }).info("started", { image: "tag:busybox", why: "two words" });
    expect(lines).toEqual([
      '2026-11-20T10:30:00.000Z INFO  started operation=0197 image=tag:busybox why="two words"\n',
    ]);
  });

  test("control characters from outside do not reach the terminal", () => {
    const { log, lines } = capture({ format: "text" });
    log.info("said \x1b[2J", { text: "\x1b]0;title\x07\n\u009b31m" });
    // biome-ignore lint/suspicious/noControlCharactersInRegex: the test is about control characters.
    expect(lines.join("").slice(0, -1)).not.toMatch(/[\x00-\x1f\x7f-\x9f]/);
  });

  test("uses colours only on request", () => {
    const { log, lines } = capture({ format: "text", color: true });
    log.error("x");
    expect(lines[0]).toContain("\x1b[31mERROR\x1b[0m");
  });
});

test.each([
  ["debug", 4],
  ["info", 3],
  ["warn", 2],
  ["error", 1],
] as [LogLevel, number][])("level %s writes %i of the four levels", (level, count) => {
  const { log, lines } = capture({ level });
  for (const at of ["debug", "info", "warn", "error"] as const) log[at]("x");
  expect(lines).toHaveLength(count);
});

test("the silent log and its children write nothing", () => {
  expect(silentLog.child({ a: 1 }).child({})).toBe(silentLog);
  expect(silentLog.error("x")).toBeUndefined();
});
