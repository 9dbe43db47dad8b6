import { afterEach, beforeEach, expect, spyOn, test } from "bun:test";
import { cli, errorReply, ScriptedAppliance } from "../../support/cli/cli.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const ENDING = "0197a1d0-5a5e-7000-8000-000000000002";
const IMPORT = "0197a1d0-5a5e-7000-8000-000000000003";

let appliance: ScriptedAppliance;
beforeEach(() => {
  appliance = new ScriptedAppliance();
});
afterEach(() => appliance[Symbol.asyncDispose]());

const coppice = (...argv: string[]) => cli(argv, { environment: appliance.environment });

/** Stops the clock, so that nothing gets older while it is listed. */
function answerWithWork(): Disposable {
  const now = Date.now();
  const clock = spyOn(Date, "now").mockReturnValue(now);
  const created_at = new Date(now - 65_000).toISOString();
  const lists: Record<string, object[]> = {
    "/operations?status=EXECUTING&limit=1000": [
      { id: ID, kind: "instance", status: "EXECUTING", created_at },
      { id: ENDING, kind: "instance", status: "EXECUTING", created_at },
    ],
    "/operations?status=PENDING&limit=1000": [{ id: IMPORT, kind: "image_import", status: "PENDING", created_at }],
  };
  appliance.answer = ({ path }) => {
    if (lists[path] !== undefined) return Response.json(lists[path]);
    if (path === `/instances/${ID}/stats?once=true`) {
      return Response.json({ cpu_time_ms: 1500, memory_bytes: 3 * 1024 ** 2, pids: 4 });
    }
    return path.startsWith(`/instances/${ENDING}/`) ? errorReply(409, "conflict", "not running") : undefined;
  };
  return { [Symbol.dispose]: () => clock.mockRestore() };
}

test("ps shows running operations with their usage, and waiting ones", async () => {
  using _clock = answerWithWork();
  const { code, stdout, stderr } = await coppice("ps");
  expect([code, stderr]).toEqual([0, ""]);
  const lines = stdout.toString().trimEnd().split("\n");
  expect(lines[0]).toMatch(/^ID +KIND +STATUS +SINCE +CPU TIME +MEMORY$/);
  expect(lines[1]).toMatch(new RegExp(`^${ID} +instance +EXECUTING +1 min 5 s +1\\.5 s +3\\.0 MiB$`));
  expect(lines[2]).toMatch(new RegExp(`^${ENDING} +instance +EXECUTING +1 min 5 s +- +-$`));
  expect(lines[3]).toMatch(new RegExp(`^${IMPORT} +image_import +PENDING +1 min 5 s +- +-$`));
});

test("ps --json gives the operations with their usage", async () => {
  using _clock = answerWithWork();
  const operations = JSON.parse((await coppice("ps", "--json")).stdout.toString());
  expect(operations.map(({ id, usage }: { id: string; usage: unknown }) => [id, usage !== null])).toEqual([
    [ID, true],
    [ENDING, false],
    [IMPORT, false],
  ]);
});

const LINES = [
  { time: "2026-11-20T10:30:00.000Z", level: "info", message: "operation accepted", request: "r1" },
  {
    time: "2026-11-20T10:30:01.000Z",
    level: "info",
    message: "operation ended",
    status: "FAILED",
    reason: "bad\x1b[31m",
    phases: { queue_ms: 2, clone_ms: 30 },
  },
];

test("op log shows lines as text, and nothing in them drives the terminal", async () => {
  appliance.answer = ({ path }) => (path === `/operations/${ID}/log` ? Response.json(LINES) : undefined);
  const { code, stdout } = await coppice("op", "log", ID);
  expect(code).toBe(0);
  expect(stdout.toString()).toBe(
    "2026-11-20T10:30:00.000Z INFO  operation accepted request=r1\n" +
      "2026-11-20T10:30:01.000Z INFO  operation ended status=FAILED reason=bad\\033[31m queue_ms=2 clone_ms=30\n",
  );
  const json = (await coppice("op", "log", ID, "--json")).stdout.toString().trimEnd().split("\n");
  expect(json.map((line) => JSON.parse(line))).toEqual(LINES);
});

test("op log says where to look when the appliance has been restarted", async () => {
  appliance.answer = () => Response.json([]);
  const { code, stdout, stderr } = await coppice("op", "log", ID);
  expect([code, stdout.toString()]).toEqual([0, ""]);
  expect(stderr).toContain(`journalctl -u coppice --grep ${ID}`);
});

/** Events as a server sends them. */
function sent(events: readonly { readonly id: number; readonly type: string; readonly data: object }[]): Response {
  const text = events.map((event) => `id: ${event.id}\nevent: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  return new Response(`: keepalive\n\n${text.join("")}`, { headers: { "content-type": "text/event-stream" } });
}

const OUTPUT = [
  { id: 1, type: "spawn", spid: 1, data: { pid: 2 } },
  { id: 2, type: "stdout", spid: 1, data: { content: "AP8K", encoding: "base64" } },
  { id: 3, type: "stderr", spid: 1, data: { content: "oops\n", encoding: "ascii" } },
  { id: 4, type: "truncated", spid: 1, data: { stream: "stdout", bytes_emitted: 3, bytes_dropped: 70 } },
];
const COMPLETION = { id: 5, type: "completion", data: { status: "SUCCESS", duration_ms: 1 } };

test("logs writes the bytes of the command to the same streams, and reports the bytes that were not kept", async () => {
  appliance.answer = ({ path }) =>
    path === `/operations/${ID}/events?follow=false&spid=1` ? sent([...OUTPUT, COMPLETION]) : undefined;
  const { code, stdout, stderr } = await coppice("logs", ID);
  expect(code).toBe(0);
  expect([...stdout]).toEqual([0, 255, 10]);
  expect(stderr).toBe("oops\ncoppice logs: 70 more bytes of stdout were not stored\n");
});

test.each([["-p 9"], ["-f -p 9"], ["--json -p 9"]])(
  "logs %s of a process that there is not is refused",
  async (options) => {
    appliance.answer = ({ path }) => (path.includes("spid=9") ? sent([COMPLETION]) : undefined);
    const { code, stderr } = await coppice("logs", ...options.split(" "), ID);
    expect([code, stderr]).toEqual([1, `coppice logs: ${ID} has no process 9\n`]);
  },
);

test("logs of a process without output is empty, and so are those of a command that did not begin", async () => {
  const spawn = { id: 1, type: "spawn", spid: 9, data: { pid: 1 } };
  appliance.answer = ({ path }) => sent(path.includes("spid=9") ? [spawn, COMPLETION] : [COMPLETION]);
  for (const options of [["-p", "9"], ["-p", "1"], []]) {
    const { code, stdout } = await coppice("logs", ...options, ID);
    expect([code, stdout.toString()]).toEqual([0, ""]);
  }
});

test("logs -f continues after the last event where its connection broke, and ends with the operation", async () => {
  const parts = [OUTPUT.slice(0, 2), OUTPUT.slice(2), [COMPLETION]];
  appliance.answer = ({ path }) =>
    path.startsWith(`/operations/${ID}/events?`) ? sent(parts.shift() ?? []) : undefined;
  const { code, stdout } = await coppice("logs", "-f", "--process", "2", ID, "--json");
  expect(code).toBe(0);
  const lines = stdout.toString().trimEnd().split("\n");
  expect(lines.map((line) => JSON.parse(line))).toEqual([...OUTPUT, COMPLETION]);
  expect(appliance.seen.map(({ path }) => path)).toEqual(Array(3).fill(`/operations/${ID}/events?follow=true&spid=2`));
  expect(appliance.seen.map(({ lastEventId }) => lastEventId)).toEqual([null, "2", "4"]);
});

test.each([
  ["90s", 90],
  ["15m", 900],
  ["2h", 7200],
  ["7", 7],
])("op extend %s gives that much from now on", async (duration, seconds) => {
  const started_at = new Date(Date.now() - 100_000).toISOString();
  appliance.answer = ({ method }) =>
    Response.json(method === "PATCH" ? { uuid: ID, timeout: 1 } : { id: ID, kind: "instance", started_at });
  expect((await coppice("op", "extend", ID, duration)).code).toBe(0);
  const [{ timeout }] = appliance.bodies("PATCH", `/instances/${ID}`) as [{ timeout: number }];
  expect(timeout).toBeGreaterThanOrEqual(100 + seconds);
  expect(timeout).toBeLessThan(110 + seconds);
});

test.each(["", "soon", "1y", "-3s", "0", "1:30"])("%p is not a duration", async (duration) => {
  const { code, stderr } = await coppice("op", "extend", ID, "--", duration);
  expect([code, stderr]).toEqual([2, expect.stringContaining("must be a duration")]);
});

test("op extend prints the new time limit", async () => {
  const started_at = new Date(Date.now() - 100_000).toISOString();
  const details = { field: "timeout", maximum: 3600 };
  const refusal = { error: "validation_error", message: "timeout must be an integer from 1 to 3600", details };
  appliance.answer = ({ method }) =>
    method === "PATCH"
      ? Response.json(refusal, { status: 400 })
      : Response.json({ id: ID, kind: "instance", started_at });
  const { code, stderr } = await coppice("op", "extend", ID, "1h");
  expect(code).toBe(2);
  expect(stderr).toMatch(
    /^coppice op extend: at most (3500|34[89]\d)s from now on: the appliance allows 3600s in all\n/,
  );
});

test("op extend refuses an instance that has ended", async () => {
  const finished_at = new Date().toISOString();
  appliance.answer = () => Response.json({ id: ID, kind: "instance", status: "CANCELLED", finished_at });
  const { code, stderr } = await coppice("op", "extend", ID, "2h");
  expect([code, stderr]).toEqual([1, `coppice op extend: operation ${ID} has ended (CANCELLED)\n`]);
  expect(appliance.bodies("PATCH", `/instances/${ID}`)).toEqual([]);
});
