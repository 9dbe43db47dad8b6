/** A guest that owns its agent lies to the next daemon in the report of its processes. */
import { expect, test } from "bun:test";
import type { LogEventData } from "../../../../../src/domain/log-event.ts";
import type { RunningInLog } from "../../../../../src/storage/events/log-summary.ts";
import {
  adoptedProcesses,
  ranMsOf,
  spidLastOf,
} from "../../../../../src/supervisor/instance/adoption/adopted-processes.ts";
import { outputPosition } from "../../../../../src/supervisor/instance/instance-process.ts";
import { OutputGapError } from "../../../../../src/vm/agent/errors.ts";
import { PROCESSES_COUNT_MAX } from "../../../../../src/vm/agent/protocol.ts";
import { sessionReport as report } from "../../../../support/survivors/session-report.ts";

const START = { ms: 1000, event: 3, data: { pid: 7, cwd: "/", truncate_output_at: 100 } as LogEventData["spawn"] };
const NOTHING = { stdout: { kept: 0, dropped: 0 }, stderr: { kept: 0, dropped: 0 } };
const COMMAND = { limitBytes: 100, keepsInput: false };

/** A log with these processes. */
const logOf = (running: Record<number, Partial<RunningInLog>>, isCapped = false) => ({
  isCapped,
  running: new Map(
    Object.entries(running).map(([spid, more]) => {
      return [Number(spid), { start: START, keptBytes: { stdout: 0, stderr: 0 }, ...more }] as const;
    }),
  ),
});

test("only processes whose starts are logged are continued, whatever numbers are reported", () => {
  const log = logOf({ 1: {}, 2: {} });
  const reports = [0, 1, 2, 3, 0xffff_ffff].map((spid, at) => report({ session: 10 + at, spid }));
  const continued = adoptedProcesses(reports, { command: log, others: log }, COMMAND);
  expect(continued.map(({ report: { spid } }) => spid)).toEqual([1, 2]);
});

test("a command has run at least as long as its log says, so a restart gives it no time", () => {
  expect(ranMsOf({ ranMs: 0 }, { ms: 1000 }, 61_000)).toBe(60_000);
  expect(ranMsOf({ ranMs: 90_000 }, { ms: 1000 }, 61_000)).toBe(90_000);
  // The clock was set back.
  expect(ranMsOf({ ranMs: 5 }, { ms: 1000 }, 0)).toBe(5);
  expect(ranMsOf({ ranMs: 5 }, null, 61_000)).toBe(5);
});

test("the numbers of later processes follow those that a service has given", () => {
  const spids = (...given: number[]) =>
    spidLastOf(
      4,
      given.map((spid) => ({ spid })),
    );
  expect(spids()).toBe(4);
  expect(spids(1, 3, 6)).toBe(6);
  expect(spids(4 + PROCESSES_COUNT_MAX)).toBe(4 + PROCESSES_COUNT_MAX);
  expect(spids(0xffff_ffff, 1_000_000)).toBe(4);
});

test("output that the log lacks is refused, unless the log had no room for it: then its size stays exact", () => {
  const far = Number.MAX_SAFE_INTEGER;
  const of = (kept: number, isCapped: boolean) => {
    const log = logOf({ 1: { keptBytes: { stdout: kept, stderr: 0 } } }, isCapped);
    const reports = [report({ keptFrom: { stdout: far, stderr: 0 } })];
    return adoptedProcesses(reports, { command: log, others: log }, COMMAND);
  };
  expect(() => of(50, false)).toThrow(OutputGapError);
  for (const [kept, isCapped] of [
    [100, false],
    [50, true],
  ] as const) {
    expect(of(kept, isCapped)[0]?.log.stdout).toEqual({ kept, dropped: far - kept });
  }
});

test("a process that is older than its log continues where the log does", () => {
  const data = { ...START.data, output_before: { stdout: 1000, stderr: 7 } };
  const log = logOf({ 2: { start: { ...START, data }, keptBytes: { stdout: 40, stderr: 0 } } });
  const of = (stdout: number, stderr: number) =>
    adoptedProcesses([report({ spid: 2, keptFrom: { stdout, stderr } })], { command: log, others: log }, COMMAND)[0]
      ?.log;
  expect(of(1030, 5)).toMatchObject({ stdout: { kept: 40, dropped: 0 }, stderr: { kept: 0, dropped: 0 } });
  expect(outputPosition(of(1030, 5) ?? NOTHING, data.output_before)).toEqual({ stdout: 1040, stderr: 7 });
  expect(() => of(1041, 0)).toThrow(OutputGapError);
  expect(() => of(0, 8)).toThrow(OutputGapError);
});
