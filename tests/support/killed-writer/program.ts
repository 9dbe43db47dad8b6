/*
 * Writes numbered lines to two streams of a process in an event log, until it is killed. It continues where the log ends, as
 * the agent of a guest does, which keeps the output that the log does not have.
 */
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { LogId } from "../../../src/domain/ids.ts";
import { EventLogs } from "../../../src/storage/events/event-logs.ts";
import type { LogSummary } from "../../../src/storage/events/log-summary.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { wallClock } from "../../../src/system/wall-clock.ts";
import { LINE_BYTES, linesFrom, SPID } from "./lines.ts";

const [root = "", id = "", kind = ""] = process.argv.slice(2);
const RING_BYTES = 1_048_576;
const logs = new EventLogs(dataLayout(root), new Accounts(), wallClock(), RING_BYTES);

async function open() {
  if (kind === "ring") {
    const log = await logs.openRing(id as LogId);
    return { log, summary: log.summary as LogSummary | null };
  }
  return (await logs.reopen(id as LogId)) ?? { log: logs.open(id as LogId), summary: null };
}

const { log, summary } = await open();
const { stdout, stderr } = summary?.running.get(SPID)?.keptBytes ?? { stdout: 0, stderr: 0 };
const start = summary?.running.get(SPID)?.start ?? null;
if (start === null) {
  log.append(SPID, "spawn", {
    ...{ pid: 7, command: "lines", args: [], cwd: "/", uid: 0, gid: 0, timeout: null, truncate_output_at: null },
  });
}
const from = { stdout: { kept: stdout, dropped: 0 }, stderr: { kept: stderr, dropped: 0 } };
const outputs = log.outputs(SPID, Number.POSITIVE_INFINITY, false, from);
for (let at = { stdout, stderr }, round = 0; ; round++) {
  for (const stream of ["stdout", "stderr"] as const) {
    // Pieces of all sizes, most of which do not end with a line.
    const bytes = 1 + ((round * 7919) % (stream === "stdout" ? 90_000 : 3 * LINE_BYTES));
    const drained = outputs.write(stream, linesFrom(at[stream], bytes));
    at = { ...at, [stream]: at[stream] + bytes };
    if (drained !== undefined) await drained;
  }
  if (round % 3 === 0) await log.written();
  process.stdout.write(".");
}
