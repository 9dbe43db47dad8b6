import { describe, expect, test } from "bun:test";
import { childRecord } from "../../../../src/supervisor/instance/forks/child-record.ts";
import type { ResumableInstance } from "../../../../src/supervisor/instance/running-instances.ts";
import { HostFrame } from "../../../../src/vm/agent/protocol.ts";

interface Input {
  readonly spid: number;
  readonly keepsInput?: boolean;
  readonly hasTerminal?: boolean;
  readonly isOver?: boolean;
  readonly firstInput?: "sent" | "stays_open" | "ends";
}

/** Of a process that was older than the log of the forked machine, too. */
const START = { cwd: "/", output_before: { stdout: 100, stderr: 7 } };

/** An instance whose processes have these inputs. */
function recordOf(inputs: readonly Input[]): ResumableInstance {
  return {
    ...{ scratchPath: "/parent/S", ranMs: 1500.4, limit: { ms: 60_000, fromStartMs: 60_000 } },
    instance: {
      ...{ spidLast: 9, refused: [], disks: { layers: ["/l"], scratch: { path: "/parent/S", use: "root" } } },
      processes: inputs.map(({ spid, keepsInput = false }) => ({
        ...{ spid, session: spid + 10, cwd: "/", keepsInput },
        log: {
          ...{ spid, pid: 7, start: START, started: { ms: 1, event: 2 }, stdinBytes: 3 },
          ...{ stdout: { kept: 5, dropped: 1 }, stderr: { kept: 0, dropped: 0 } },
        },
        taps: { holds: true, waiting: [{ stream: "stdout", bytes: "AA==" }], taps: [{}] },
      })),
      agent: {
        processes: inputs.map(({ spid, hasTerminal = false, isOver = false, firstInput = "sent" }) => ({
          ...{ session: spid + 10, hasTerminal, stdin: { isOver }, firstInput, unsentLimit: null },
        })),
        frames: [HostFrame.window, HostFrame.signal, HostFrame.forget].map((type) => ({
          type,
          session: 1,
          payload: "",
        })),
      },
    },
  } as unknown as ResumableInstance;
}

const CHANGES = { scratchPath: "/child/S", timeoutMs: null, keepsInput: false };

describe("the record of a copy", () => {
  test("has an empty log, no readers, a scratch of its own, and no signal for its parent", () => {
    const { record } = childRecord(recordOf([{ spid: 1 }]), CHANGES);
    expect(record.scratchPath).toBe("/child/S");
    expect(record.instance.disks).toEqual({ layers: ["/l"], scratch: { path: "/child/S", use: "root" } });
    const [process] = record.instance.processes;
    const nothing = { kept: 0, dropped: 0 };
    expect(process?.log).toMatchObject({ pid: 7, started: null, stdinBytes: 3, stdout: nothing, stderr: nothing });
    expect(process?.log.start).toMatchObject({ cwd: "/", output_before: { stdout: 106, stderr: 7 } });
    expect(process?.taps).toEqual({ holds: true, waiting: [], taps: [] });
    expect(record.instance.agent.frames.map(({ type }) => type)).toEqual([HostFrame.window, HostFrame.forget]);
    expect([record.ranMs, record.limit]).toEqual([1500.4, { ms: 60_000, fromStartMs: 60_000 }]);
  });

  const inputs: readonly Input[] = [
    { spid: 1, firstInput: "ends" },
    { spid: 2, keepsInput: true },
    { spid: 3, keepsInput: true, hasTerminal: true },
    { spid: 4, keepsInput: true, isOver: true },
    { spid: 5 },
    { spid: 6, keepsInput: true, firstInput: "stays_open" },
  ];

  test("ends the inputs that are open, except those of terminals", () => {
    const { record, inputEnds } = childRecord(recordOf(inputs), CHANGES);
    expect(inputEnds).toEqual([1, 2, 6]);
    expect(record.instance.agent.processes.every(({ firstInput }) => firstInput === "sent")).toBe(true);
    expect(record.instance.processes.filter(({ keepsInput }) => keepsInput).map(({ spid }) => spid)).toEqual([
      1, 2, 3, 6,
    ]);
  });

  test("keeps inputs for which more could come, on request", () => {
    expect(childRecord(recordOf(inputs), { ...CHANGES, keepsInput: true }).inputEnds).toEqual([1]);
  });

  test("counts a limit of its own from the fork, and lets the agent know", () => {
    const { record } = childRecord(recordOf([{ spid: 1 }, { spid: 2 }]), { ...CHANGES, timeoutMs: 5000 });
    expect(record.limit).toEqual({ ms: 6500, fromStartMs: 6500 });
    const limits = record.instance.agent.processes.map(({ unsentLimit }) => unsentLimit);
    expect(limits).toEqual([{ timeoutMs: 6500 }, null]);
  });
});
