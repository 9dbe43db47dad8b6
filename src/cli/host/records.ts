import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { OperationId } from "../../domain/ids.ts";
import type { RecordedMachine } from "../../domain/operator/restart.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { hostBootId, parseRecord } from "../../supervisor/survivors/instance-record.ts";
import { readRecordFile } from "../../supervisor/survivors/record-file.ts";
import { homePaths } from "../../vm/jail/jailed-vmm.ts";

/** The machines of a data directory, as a daemon of this version would read their records at its start. */
export async function recordedMachines({ vms }: DataLayout): Promise<RecordedMachine[]> {
  if (!existsSync(vms)) return [];
  const bootId = hostBootId();
  const machines = new Map<OperationId, RecordedMachine>();
  // The newest first: an older machine of the same operation was replaced.
  for (const id of (await readdir(vms)).sort().reverse()) {
    // A machine without a record has none yet, or cannot outlive the daemon; and it may end at any time.
    const read = parseRecord(await readRecordFile(homePaths(join(vms, id)).record), bootId);
    const operationId = read.problem === null ? read.record.operationId : read.operationId;
    if (operationId === null || machines.has(operationId)) continue;
    machines.set(operationId, { operationId, problem: read.problem });
  }
  return [...machines.values()];
}
