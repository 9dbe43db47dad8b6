/** The processes that an agent reports, and their log. */
import { describe, expect, test } from "bun:test";
import type { LogEventData } from "../../../../../src/domain/log-event.ts";
import type { RunningInLog } from "../../../../../src/storage/events/log-summary.ts";
import {
  type AdoptedProcess,
  adoptedProcesses,
} from "../../../../../src/supervisor/instance/adoption/adopted-processes.ts";
import { outputPosition } from "../../../../../src/supervisor/instance/instance-process.ts";
import { OutputGapError } from "../../../../../src/vm/agent/errors.ts";
import type { SessionReport } from "../../../../../src/vm/agent/reconnect.ts";
import { sessionReport } from "../../../../support/survivors/session-report.ts";

type Spawn = Partial<LogEventData["spawn"]>;

interface Logged {
  readonly spawn?: Spawn;
  readonly stdout?: number;
  readonly stderr?: number;
}

/** A log with these processes. */
function logOf(running: Readonly<Record<number, Logged>>, isCapped = false) {
  const processes = Object.entries(running).map(([spid, { spawn, stdout = 0, stderr = 0 }]) => {
    const data = { pid: 7, cwd: "/work", truncate_output_at: 100, ...spawn } as LogEventData["spawn"];
    const start = spawn === undefined ? null : { ms: 1000, event: 3, data };
    return [Number(spid), { start, keptBytes: { stdout, stderr } } satisfies RunningInLog] as const;
  });
  return { isCapped, running: new Map(processes) };
}

const COMMAND = { limitBytes: 100, keepsInput: false };

/** The process with that number, as it continues; undefined: it does not. */
function continued(
  report: Partial<SessionReport>,
  log: ReturnType<typeof logOf>,
  command: Parameters<typeof adoptedProcesses>[2] = COMMAND,
): AdoptedProcess | undefined {
  return adoptedProcesses([sessionReport(report)], { command: log, others: log }, command)[0];
}

describe("the output", () => {
  test("continues where the log ends, when the agent has kept all from there on, or more", () => {
    const log = logOf({ 1: { spawn: {}, stdout: 40, stderr: 7 } });
    for (const stdout of [0, 39, 40]) {
      const process = continued({ keptFrom: { stdout, stderr: 7 } }, log);
      const sizes = { stdout: { kept: 40, dropped: 0 }, stderr: { kept: 7, dropped: 0 } };
      expect(process?.log).toMatchObject(sizes);
      expect(outputPosition(sizes, undefined)).toEqual({ stdout: 40, stderr: 7 });
    }
  });

  test("with one byte that neither has is refused, in either stream, and of any process", () => {
    for (const spid of [1, 2]) {
      const log = logOf({ [spid]: { spawn: {}, stdout: 40, stderr: 40 } });
      for (const [stdout, stderr] of [
        [41, 40],
        [40, 41],
      ] as const) {
        expect(() => continued({ spid, keptFrom: { stdout, stderr } }, log)).toThrow(
          new OutputGapError(`the log lacks 1 bytes of process ${spid}`),
        );
      }
    }
  });

  test("beyond the limit of a stream is counted, and the other stream is not full with it", () => {
    const log = logOf({ 1: { spawn: {}, stdout: 100, stderr: 40 } });
    const process = continued({ keptFrom: { stdout: 5000, stderr: 40 } }, log);
    expect(process?.log).toMatchObject({ stdout: { kept: 100, dropped: 4900 }, stderr: { kept: 40, dropped: 0 } });
    expect(
      outputPosition({ stdout: { kept: 100, dropped: 4900 }, stderr: { kept: 40, dropped: 0 } }, undefined).stdout,
    ).toBe(5000);
    expect(() => continued({ keptFrom: { stdout: 5000, stderr: 41 } }, log)).toThrow(OutputGapError);
  });

  test("of a log that was full is counted in both streams, without a limit, too", () => {
    const log = logOf({ 1: { spawn: {}, stdout: 10, stderr: 0 } }, true);
    const process = continued({ keptFrom: { stdout: 30, stderr: 5 } }, log, { ...COMMAND, limitBytes: null });
    expect(process?.log).toMatchObject({ stdout: { kept: 10, dropped: 20 }, stderr: { kept: 0, dropped: 5 } });
  });

  test("of another process has the limit of its own start", () => {
    const log = logOf({ 2: { spawn: { truncate_output_at: 10 }, stdout: 10 } });
    const process = continued({ spid: 2, keptFrom: { stdout: 11, stderr: 0 } }, log, { ...COMMAND, limitBytes: 5 });
    expect(process).toMatchObject({ truncateOutputAtBytes: 10, log: { stdout: { kept: 10, dropped: 1 } } });
  });
});

describe("a start", () => {
  test("of the command that is not logged is logged by the next service; that of another process is not", () => {
    const report = { pid: 9, keptFrom: { stdout: 0, stderr: 0 } };
    expect(continued({ spid: 1, ...report }, logOf({}))?.log).toMatchObject({ pid: 9, start: null, started: null });
    expect(continued({ spid: 2, ...report }, logOf({}))).toBeUndefined();
    expect(continued({ spid: 2, ...report }, logOf({ 2: { stdout: 5 } }))).toBeUndefined();
  });

  test("that is logged keeps its number, whatever the agent reports", () => {
    const process = continued({ pid: 4_000_000_000 }, logOf({ 1: { spawn: { pid: 7 } } }));
    expect(process?.log).toMatchObject({ pid: 7, started: { ms: 1000, event: 3 }, start: { cwd: "/work" } });
    expect(process?.log.start).not.toHaveProperty("pid");
  });

  test("in the log of a sandbox is found there, and the command in that of the operation", () => {
    const logged = { command: logOf({ 1: { spawn: { cwd: "/a" } } }), others: logOf({ 2: { spawn: { cwd: "/b" } } }) };
    const reports = [1, 2].map((spid) => sessionReport({ session: spid, spid }));
    const cwds = adoptedProcesses(reports, logged, COMMAND).map(({ log }) => log.start?.cwd);
    expect(cwds).toEqual(["/a", "/b"]);
    const swapped = { command: logged.others, others: logged.command };
    expect(adoptedProcesses(reports, swapped, COMMAND).map(({ log }) => log.start)).toEqual([null]);
  });
});

describe("the input", () => {
  const input = (spawn: Spawn, report: Partial<SessionReport>) =>
    continued({ spid: 2, hasInput: true, ...report }, logOf({ 2: { spawn } }));

  test("stays open as its start said; a start of an older service says it by having one", () => {
    expect(input({ stdin_bytes: 0, stdin_open: true }, {})?.keepsInput).toBe(true);
    expect(input({ stdin_bytes: 0, stdin_open: false }, {})?.keepsInput).toBe(false);
    expect(input({ stdin_bytes: 0 }, {})?.keepsInput).toBe(false);
    expect(input({}, { hasInput: true })?.keepsInput).toBe(true);
    expect(input({}, { hasInput: false })?.keepsInput).toBe(false);
  });

  test("that was in the request of a caller who left is cut, unless the agent has all of it", () => {
    const isCut = (stdinTakenBytes: number, more: Partial<SessionReport> = {}) =>
      input({ stdin_bytes: 1000, stdin_open: true }, { stdinTakenBytes, ...more })?.isCut;
    expect([0, 999, 1000, 1001].map((bytes) => isCut(bytes))).toEqual([true, true, false, false]);
    expect(isCut(0, { inputEnded: true })).toBe(false);
    expect(isCut(0, { finished: true })).toBe(false);
  });

  test("of the command is never cut: its request has it", () => {
    const log = logOf({ 1: { spawn: { stdin_bytes: 1000 } } });
    const process = continued({ hasInput: true, stdinTakenBytes: 10 }, log);
    expect(process).toMatchObject({ isCut: false, log: { stdinBytes: 10 } });
  });
});

test("as many processes as an agent can have are continued, in its order", () => {
  const spids = Array.from({ length: 64 }, (_, at) => 64 - at);
  const log = logOf(Object.fromEntries(spids.map((spid) => [spid, { spawn: {} }])));
  const reports = spids.map((spid) => sessionReport({ session: spid, spid }));
  const processes = adoptedProcesses(reports, { command: log, others: log }, COMMAND);
  expect(processes.map(({ report }) => report.spid)).toEqual(spids);
});
