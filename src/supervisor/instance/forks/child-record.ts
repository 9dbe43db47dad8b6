import { Spid } from "../../../domain/log-event.ts";
import { HostFrame } from "../../../vm/agent/protocol.ts";
import { type InstanceProcessRecord, outputPosition, type ProcessLogRecord } from "../instance-process.ts";
import type { ResumableInstance } from "../running-instances.ts";

const NOTHING = { stdout: { kept: 0, dropped: 0 }, stderr: { kept: 0, dropped: 0 } };

/** The differences between a copy of an instance and the instance. */
export interface ChildChanges {
  /** host path of its own scratch */
  readonly scratchPath: string;
  /** time limit from the fork, in `milliseconds`; null: what is left of the parent's */
  readonly timeoutMs: number | null;
  /** whether inputs that the parent's clients could still write to stay open; those of terminals always do */
  readonly keepsInput: boolean;
}

/** The record of a copy of an instance. */
export interface ChildRecord {
  readonly record: ResumableInstance;
  /** numbers of the processes whose standard input is to be ended */
  readonly inputEnds: readonly number[];
}

/**
 * The record from which a copy of an instance continues, with a log of its own, which has nothing yet. Readers, and input that
 * has not arrived, are the parent's. So are signals that wait for the end of the hold.
 */
export function childRecord(
  { instance, limit, ranMs }: ResumableInstance,
  { scratchPath, timeoutMs, keepsInput }: ChildChanges,
): ChildRecord {
  const { agent, disks } = instance;
  const sessions = new Map(agent.processes.map((process) => [process.session, process]));
  const inputEnds: number[] = [];
  const processes = instance.processes.map((process): InstanceProcessRecord => {
    const from = sessions.get(process.session);
    const isOpen = from !== undefined && !from.stdin.isOver && (process.keepsInput || from.firstInput !== "sent");
    const staysOpen = from?.hasTerminal === true || (keepsInput && process.keepsInput);
    if (isOpen && !staysOpen) inputEnds.push(process.spid);
    return {
      ...process,
      keepsInput: isOpen,
      log: emptied(process.log),
      taps: { holds: true, waiting: [], taps: [] },
    };
  });
  const ms = timeoutMs === null ? null : Math.round(ranMs) + timeoutMs;
  const command = instance.processes.find(({ spid }) => spid === Spid.command)?.session;
  const record: ResumableInstance = {
    scratchPath,
    ranMs,
    limit: ms === null ? limit : { ms, fromStartMs: ms },
    instance: {
      ...instance,
      disks: disks === null ? null : { ...disks, scratch: { path: scratchPath, use: disks.scratch?.use ?? "root" } },
      processes,
      agent: {
        ...agent,
        processes: agent.processes.map((process) => ({
          ...process,
          firstInput: "sent",
          ...(ms !== null && process.session === command ? { unsentLimit: { timeoutMs: ms } } : {}),
        })),
        frames: agent.frames.filter(({ type }) => type !== HostFrame.signal),
      },
    },
  };
  return { record, inputEnds };
}

/** The position of a log that has nothing of the process yet. */
function emptied(log: ProcessLogRecord): ProcessLogRecord {
  const output_before = outputPosition(log, log.start.output_before);
  return { ...log, ...NOTHING, started: null, start: { ...log.start, output_before } };
}
