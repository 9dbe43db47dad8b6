import type { Database } from "../../src/db/database.ts";
import type { OperationId } from "../../src/domain/ids.ts";
import { silentLog } from "../../src/log.ts";
import { createMetrics } from "../../src/metrics.ts";
import type { DataLayout } from "../../src/storage/layout.ts";
import { LiveInstances } from "../../src/supervisor/instance/live-instances.ts";
import { EventLogs } from "../../src/supervisor/operations/event-logs.ts";
import { Operations, type OperationsOptions } from "../../src/supervisor/operations/operations.ts";
import { Requests } from "../../src/supervisor/operations/requests.ts";
import { Scheduler } from "../../src/supervisor/operations/scheduler.ts";
import type { Prepared, WorkContext } from "../../src/supervisor/operations/work.ts";
import { wallClock } from "../../src/system/wall-clock.ts";

export const PLACE = { memoryBytes: 1, vcpus: 1 };

/** The work of an operation of whichever kind, as a test does it. */
export type Preparation = (context: WorkContext, request: object) => Promise<Prepared>;

/** Operations whose work is what `preparationOf` gives for them, on one place; three of an account may wait. */
export function testOperations(
  { db, layout }: { readonly db: Database; readonly layout: DataLayout },
  preparationOf: (id: OperationId) => Preparation,
  more: Partial<OperationsOptions> = {},
): Operations {
  const worker = {
    cost: () => PLACE,
    prepare: ({ id }: { readonly id: OperationId }, request: object, context: WorkContext) =>
      preparationOf(id)(context, request),
  };
  return new Operations({
    db,
    requests: new Requests(db, layout),
    log: silentLog,
    clock: Date.now,
    metrics: createMetrics(),
    scheduler: new Scheduler(PLACE, Date.now),
    workers: { instances: worker, imports: worker, checkpoints: { ...worker, cost: () => null } },
    eventLogs: new EventLogs(layout, wallClock()),
    instances: new LiveInstances(),
    requireSpace: () => undefined,
    spaceSettled: () => Promise.resolve(),
    readiness: () => ({ ready: true, isolation: "vm", reason: "", checks: [] }),
    machinesKnown: () => Promise.resolve(),
    waiting: { countMax: 3, bytesMax: 1_000_000 },
    ...more,
  });
}
