import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Database, openDatabase } from "../../src/db/database.ts";
import { accounts as accountRows, images, layers } from "../../src/db/schema.ts";
import { Accounts } from "../../src/domain/account/accounts.ts";
import type { AccountId, ImageId, OperationId } from "../../src/domain/ids.ts";
import type { InstanceSubmission } from "../../src/domain/spawn.ts";
import { silentLog } from "../../src/log.ts";
import { createMetrics } from "../../src/metrics.ts";
import { EventLogs } from "../../src/storage/events/event-logs.ts";
import { type DataLayout, dataLayout } from "../../src/storage/layout.ts";
import { RunningInstances } from "../../src/supervisor/instance/running-instances.ts";
import { checkpointKind } from "../../src/supervisor/kinds/checkpoint.ts";
import { KINDS } from "../../src/supervisor/kinds/kinds.ts";
import { atWork, type Kind, type KindAtWork } from "../../src/supervisor/operations/kind.ts";
import { Operations } from "../../src/supervisor/operations/operations.ts";
import type { OperationsOptions } from "../../src/supervisor/operations/options.ts";
import { Requests } from "../../src/supervisor/operations/requests.ts";
import { Scheduler } from "../../src/supervisor/operations/scheduler.ts";
import type { Prepared, WorkContext, Worker } from "../../src/supervisor/operations/work.ts";
import { scratchDirectory } from "../../src/system/scratch.ts";
import { wallClock } from "../../src/system/wall-clock.ts";
import { someLayer } from "./database.ts";

/** A run of `true`, as its kind receives it. */
export const SUBMISSION: InstanceSubmission = {
  imageId: "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as ImageId,
  argv: ["true"],
  env: {},
  cwd: "/",
  timeoutSeconds: 1,
  files: [],
  truncateOutputAtBytes: 1,
  ...{ uid: 0, gid: 0, stdinOpen: false, terminal: null, requestedAt: null, hostname: null, tag: null },
  ...{ shell: false, unset: [], inherit: false, isCwdGiven: true, preserveEnv: false, preserveCwd: false },
  stdin: null,
  disposable: true,
  resources: { vcpus: 1, memoryBytes: 1, diskBytes: 1 },
  network: null,
};

/**
 * The storage that operations need: a database with one account and one image, and a data directory next to it. The test
 * may reopen the database, and closes it before the disposal removes all files.
 */
export interface OperationsStore extends AsyncDisposable {
  readonly databasePath: string;
  readonly db: Database;
  readonly layout: DataLayout;
}

/** Makes a store in a directory of its own, which disposal removes. */
export async function operationsStore(accountId: AccountId, imageId: ImageId): Promise<OperationsStore> {
  await using stack = new AsyncDisposableStack();
  const { path } = stack.use(await scratchDirectory(tmpdir(), "coppice-operations-"));
  const databasePath = join(path, "db");
  const db = openDatabase(databasePath);
  const layout = dataLayout(join(path, "data"));
  await layout.ensure();
  const layer = { ...someLayer(), createdAt: 1 };
  db.orm.insert(accountRows).values({ id: accountId, createdAt: 1 }).run();
  db.orm.insert(layers).values(layer).run();
  db.orm.insert(images).values({ id: imageId, accountId, layerId: layer.id, sizeBytes: 1, createdAt: 1 }).run();
  const owned = stack.move();
  return { databasePath, db, layout, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

export const PLACE = { memoryBytes: 1, vcpus: 1 };

/** The work of an operation of any kind, as a test does it. */
export type Preparation = (context: WorkContext, request: object) => Promise<Prepared>;

/** Options of operations, and the running instances. */
export type TestOptions = Partial<OperationsOptions> & {
  readonly instances?: Pick<RunningInstances, "stats" | "claim">;
};

/** The kinds of the product with the work that `preparationOf` returns. A checkpoint needs no place, as in the product. */
export function testKinds(
  preparationOf: (id: OperationId) => Preparation,
  instances: TestOptions["instances"] = new RunningInstances(),
): KindAtWork[] {
  return Object.values(KINDS).map((kind: Kind<never, object, object, never>) => {
    const { cost, reserve } = kind.worker({ instances } as never);
    const worker: Worker<never, object> = {
      cost: kind === checkpointKind ? cost : () => PLACE,
      prepare: ({ id }, request, context) => preparationOf(id)(context, request),
      ...(reserve === undefined ? {} : { reserve }),
    };
    return atWork({ ...kind, worker: () => worker }, undefined as never);
  });
}

/** Operations with the work that `preparationOf` returns, on one place; three of an account may wait. */
export function testOperations(
  { db, layout }: { readonly db: Database; readonly layout: DataLayout },
  preparationOf: (id: OperationId) => Preparation,
  { instances = new RunningInstances(), ...more }: TestOptions = {},
): Operations {
  const waiting = { waitingOperations: { max: 3 }, waitingRequests: { max: 1_000_000 } };
  const { accounts = new Accounts(waiting) } = more;
  return new Operations({
    db,
    requests: new Requests(db, layout),
    log: silentLog,
    clock: Date.now,
    metrics: createMetrics(),
    scheduler: new Scheduler(PLACE, Date.now, accounts),
    kinds: testKinds(preparationOf, instances),
    eventLogs: new EventLogs(layout, accounts, wallClock()),
    samplesOf: (id, signal) => instances.stats(id, signal),
    requireSpace: () => undefined,
    spaceSettled: () => Promise.resolve(),
    readiness: () => ({ ready: true, isolation: "vm", reason: "", checks: [] }),
    machinesReady: () => Promise.resolve(),
    accounts,
    ...more,
  });
}
