import type { SessionReport } from "../../../src/vm/agent/reconnect.ts";

/** The report of an agent about a command that runs, without input or output. */
export function sessionReport(more: Partial<SessionReport>): SessionReport {
  return {
    ...{ session: 3, spid: 1, target: 0, started: true, finished: false, pid: 7, hasTerminal: false, isIdle: false },
    ...{ lingers: false, hasInput: false, inputEnded: false, stdinTakenBytes: 0, stdinCreditBytes: 0 },
    ...{ keptFrom: { stdout: 0, stderr: 0 }, keptBytes: 0, ranMs: 0, limitMs: 0 },
    ...more,
  };
}
