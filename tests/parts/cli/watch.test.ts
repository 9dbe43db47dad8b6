import { afterEach, beforeEach, expect, test } from "bun:test";
import { outputObject } from "../../../src/api/v1/schema/operations.ts";
import { cli, errorReply, ScriptedAppliance } from "../../support/cli.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const ENDING = "0197a1d0-5a5e-7000-8000-000000000002";
const IMPORT = "0197a1d0-5a5e-7000-8000-000000000003";

let appliance: ScriptedAppliance;
beforeEach(() => {
  appliance = new ScriptedAppliance();
});
afterEach(() => appliance[Symbol.asyncDispose]());

const coppice = (...argv: string[]) => cli(argv, { environment: appliance.environment });

function answerWithWork(): void {
  const created_at = new Date(Date.now() - 65_000).toISOString();
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
}

test("ps shows what runs with what it uses, and what waits", async () => {
  answerWithWork();
  const { code, stdout, stderr } = await coppice("ps");
  expect([code, stderr]).toEqual([0, ""]);
  const lines = stdout.toString().trimEnd().split("\n");
  expect(lines[0]).toMatch(/^ID +KIND +STATUS +SINCE +CPU TIME +MEMORY$/);
  expect(lines[1]).toMatch(new RegExp(`^${ID} +instance +EXECUTING +1 min 5 s +1\\.5 s +3\\.0 MiB$`));
  expect(lines[2]).toMatch(new RegExp(`^${ENDING} +instance +EXECUTING +1 min 5 s +- +-$`));
  expect(lines[3]).toMatch(new RegExp(`^${IMPORT} +image_import +PENDING +1 min 5 s +- +-$`));
});

test("ps --json gives the operations with their usage", async () => {
  answerWithWork();
  const shown = JSON.parse((await coppice("ps", "--json")).stdout.toString());
  expect(shown.map(({ id, usage }: { id: string; usage: unknown }) => [id, usage !== null])).toEqual([
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

test("logs shows lines as text, and nothing in them drives the terminal", async () => {
  appliance.answer = ({ path }) => (path === `/operations/${ID}/log` ? Response.json(LINES) : undefined);
  const { code, stdout } = await coppice("logs", ID);
  expect(code).toBe(0);
  expect(stdout.toString()).toBe(
    "2026-11-20T10:30:00.000Z INFO  operation accepted request=r1\n" +
      "2026-11-20T10:30:01.000Z INFO  operation ended status=FAILED reason=bad\\033[31m queue_ms=2 clone_ms=30\n",
  );
  const json = (await coppice("logs", ID, "--json")).stdout.toString().trimEnd().split("\n");
  expect(json.map((line) => JSON.parse(line))).toEqual(LINES);
});

test("logs says where to look when the appliance has been restarted", async () => {
  appliance.answer = () => Response.json([]);
  const { code, stdout, stderr } = await coppice("logs", ID);
  expect([code, stdout.toString()]).toEqual([0, ""]);
  expect(stderr).toContain(`journalctl -u coppice --grep ${ID}`);
});

test("logs --output gives the bytes of the command, each stream where it belongs", async () => {
  const result = {
    exit_code: 3,
    stdout: outputObject(new Uint8Array([0, 255, 10]), false),
    stderr: outputObject(new TextEncoder().encode("oops\n"), false),
  };
  appliance.answer = () => Response.json({ id: ID, kind: "instance", status: "SUCCESS", result });
  const { code, stdout, stderr } = await coppice("logs", ID, "--output");
  expect(code).toBe(0);
  expect([...stdout]).toEqual([0, 255, 10]);
  expect(stderr).toBe("oops\n");
});

test("logs --output of what has none fails and says so", async () => {
  appliance.answer = () => Response.json({ id: ID, kind: "instance", status: "FAILED" });
  expect(await coppice("logs", ID, "--output")).toMatchObject({
    code: 1,
    stderr: `coppice logs: operation ${ID} (FAILED) has no output\n`,
  });
});
