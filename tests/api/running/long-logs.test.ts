/** Processes whose log is a ring that no longer has its first events; they are real ones, on this host. */

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, spyOn } from "bun:test";
import type { LogId } from "../../../src/domain/ids.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { AttachedClient } from "../../support/api/attached.ts";
import { heldTest } from "../../support/api/program.ts";
import { runningInstance } from "../../support/api/running.ts";
import { until } from "../../support/waiting.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

type Json = Record<string, unknown>;
const open = (path: string, query = "") => AttachedClient.open(api, path, { query });
const OPEN = { spec: { stdin: "open" }, logsToRing: true } as const;

/** Adds so many bytes to the log, as other processes of the instance do. */
async function fill(id: LogId, bytes: number): Promise<void> {
  using log = await api.parts.eventLogs.openRing(id);
  for (let left = bytes; left > 0; left -= 1000) log.append(0, "progress", { fill: "x".repeat(1000) });
  await log.end();
}

/** Adds so many bytes right before or right after the next search of a log. */
function fillAtScan(at: string, bytes: number) {
  const { eventLogs } = api.parts;
  const scan = eventLogs.scan.bind(eventLogs);
  return spyOn(eventLogs, "scan").mockImplementationOnce(async function* (id, request) {
    if (at === "before") await fill(id, bytes);
    yield* scan(id, request);
    if (at === "after") await fill(id, bytes);
  });
}

describe("an attachment to a process whose first output is gone", () => {
  const SIZE = 3_000_003;
  const SCRIPT = "seq 444444; read line; echo end $line";

  /** Sum of the sizes that the client got as those of missing output. */
  const missingBytes = ({ statuses }: AttachedClient): number =>
    statuses.reduce((sum, { dropped }) => sum + ((dropped as { bytes: number } | undefined)?.bytes ?? 0), 0);

  // The log has 16 parts of 64 KiB: it drops what the client reads next, much of what is left, and all of it.
  const DROPS = [1, 10, 40].flatMap((parts) => [[parts, "before"] as const, [parts, "after"] as const]);

  heldTest.each(DROPS)(
    "has its size when the log drops %i parts right %s it counts what is left",
    async (parts, at) => {
      await using running = await runningInstance(api, SCRIPT, OPEN);
      await until("all is logged", () => running.log.bytes("stdout").kept === SIZE);
      await api.parts.eventLogs.written(running.id as LogId);
      using counting = fillAtScan(at, parts * 65_536);
      using lossless = await open(running.path, "?lossless=true");
      lossless.type("typed\n");
      expect(await lossless.socket.closed).toMatchObject({ code: 1000 });
      expect(counting).toHaveBeenCalled();
      expect(missingBytes(lossless) + lossless.of(1).byteLength).toBe(SIZE + "end typed\n".length);
    },
  );

  heldTest("has its size when it attaches before all is stored", async () => {
    await using running = await runningInstance(api, SCRIPT, OPEN);
    await until("all is logged", () => running.log.bytes("stdout").kept === SIZE);
    using lossless = await open(running.path, "?lossless=true");
    lossless.type("typed\n");
    expect(await lossless.socket.closed).toMatchObject({ code: 1000 });
    expect(missingBytes(lossless) + lossless.of(1).byteLength).toBe(SIZE + "end typed\n".length);
  });

  heldTest("has its size, and what follows to the end, whether it is lossless or not", async () => {
    await using running = await runningInstance(api, SCRIPT, OPEN);
    await until("all is logged", () => running.log.bytes("stdout").kept === SIZE);
    await api.parts.eventLogs.written(running.id as LogId);
    using lossless = await open(running.path, "?lossless=true");
    await lossless.until("444444\n");
    using other = await open(running.path);
    await other.until("444444\n");
    lossless.type("typed\n");
    for (const { socket } of [lossless, other]) expect(await socket.closed).toMatchObject({ code: 1000 });
    const output = lossless.of(1);
    const [missing, end, ...more] = lossless.statuses;
    expect(missing).toEqual({ dropped: { stream: "stdout", bytes: SIZE + "end typed\n".length - output.byteLength } });
    expect([end?.["exit_code"], more]).toEqual([0, []]);
    expect(output.byteLength).toBeGreaterThan(800_000);
    expect(output.toString().endsWith("\n444443\n444444\nend typed\n")).toBe(true);
    expect(other.of(1).equals(output)).toBe(true);
    const [{ gap } = {}] = other.statuses;
    const { first, dropped } = gap as { first: number; dropped: number };
    expect([dropped, first > 10]).toEqual([first, true]);
  });
});

describe("processes whose first events are gone", () => {
  heldTest("are listed and read while they run, with the output that is left", async () => {
    await using running = await runningInstance(api, "echo begun; cat", OPEN);
    const at = `${running.path}/processes`;
    const run = async (command: string, more: Json = {}): Promise<number> => {
      const json = { command, shell: true, env: { PATH: "/usr/bin:/bin" }, truncate_output_at: 10_485_760, ...more };
      return (await api.call("POST", at, { json })).json.spid;
    };
    const listed = async (query = "") =>
      ((await api.call("GET", `${at}${query}`)).json as Json[]).map(({ spid, state }) => [spid, state]);
    const read = async (spid: number): Promise<Json> => (await api.call("GET", `${at}/${spid}`)).json;
    const short = await run("echo short");
    await running.instance.process(short)?.exit;
    const long = await run("echo first; read line; echo last $line; read line", { stdin_open: true });
    const [command, other] = await Promise.all([read(1), read(long)]);
    expect([command["state"], other["state"]]).toEqual(["running", "running"]);
    expect(await listed()).toEqual([
      [1, "running"],
      [short, "ended"],
      [long, "running"],
    ]);
    const filling = await run("seq 444444");
    await running.instance.process(filling)?.exit;
    const later = await run("echo later");
    await running.instance.process(later)?.exit;
    expect(await listed()).toEqual([
      [1, "running"],
      [long, "running"],
      [later, "ended"],
    ]);
    expect(await listed("?offset=1&limit=1")).toEqual([[long, "running"]]);
    errorOf(await api.call("GET", `${at}/${short}`), "not_found");
    const gone = { content: "", truncated: true };
    expect(await read(1)).toMatchObject({ ...command, stdout: gone });
    expect(await read(long)).toMatchObject({ ...other, stdout: gone, stderr: { content: "", truncated: false } });
    await api.call("POST", `${at}/${long}/stdin`, { json: { content: "line\n" } });
    await until("it has read", async () => (await left(long)) !== "");
    expect(await read(long)).toMatchObject({ ...other, stdout: { content: "last line\n", truncated: true } });
    expect(await read(later)).toMatchObject({ stdout: { content: "later\n", truncated: false } });

    async function left(spid: number): Promise<string> {
      return ((await read(spid))["stdout"] as { content: string }).content;
    }
  });

  heldTest("are listed and read when the log drops their starts right before the search", async () => {
    await using running = await runningInstance(api, "cat", OPEN);
    const at = `${running.path}/processes`;
    const json = { command: "sleep", args: ["1000"], env: { PATH: "/usr/bin:/bin" } };
    const { spid } = (await api.call("POST", at, { json })).json;
    const before = (await api.call("GET", at)).json as Json[];
    expect(before.map(({ state }) => state)).toEqual(["running", "running"]);
    /** Drops all events between the request and the search of its answer. */
    const read = async (path: string): Promise<Json & Json[]> => {
      using searching = fillAtScan("before", 40 * 65_536);
      const { json: answer } = await api.call("GET", path);
      expect(searching).toHaveBeenCalled();
      return answer;
    };
    expect(await read(`${at}/${spid}`)).toMatchObject({ spid, state: "running" });
    const { spid: other } = (await api.call("POST", at, { json })).json;
    const listed = await read(at);
    expect(listed.map((process) => process["spid"])).toEqual([1, spid, other]);
    expect(listed.slice(0, 2)).toEqual(before);
    const { spid: third } = (await api.call("POST", at, { json })).json;
    expect((await read(`${at}?offset=2&limit=1`)).map((process) => process["spid"])).toEqual([other]);
    expect((await read(`${at}?offset=3`)).map((process) => process["spid"])).toEqual([third]);
  });
});
