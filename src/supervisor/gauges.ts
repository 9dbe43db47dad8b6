import { statfsSync, statSync } from "node:fs";
import type { Database } from "../db/database.ts";
import { type StoreTotals, storeTotals } from "../db/totals.ts";
import type { Metrics } from "../metrics.ts";
import type { Gate } from "../network/gate.ts";
import type { EventLogs } from "../storage/events/event-logs.ts";
import { inodeRoom } from "../storage/free-space.ts";
import type { DataLayout } from "../storage/layout.ts";
import type { RunningInstances } from "./instance/running-instances.ts";
import type { MachineProvider } from "./machines/machine-provider.ts";
import type { Compactor } from "./merging/compact.ts";
import type { Operations } from "./operations/operations.ts";
import type { Scheduler } from "./operations/scheduler.ts";
import { SharedReading } from "./shared-reading.ts";

/** Sums over whole tables are cached this long, in `milliseconds`, so that scrapes are cheap. */
const TOTALS_AGE_MS_MAX = 15_000;
/** How often the event loop's lag is measured. */
const LAG_INTERVAL_MS = 250;

const NO_TOTALS: StoreTotals = {
  imageCount: 0,
  layerCount: 0,
  layerBytes: 0,
  mergedLayerCount: 0,
  mergedLayerBytes: 0,
  fileCount: 0,
  fileBytes: 0,
};

export interface GaugeSources {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly machines: MachineProvider;
  readonly operations: Operations;
  readonly eventLogs: EventLogs;
  readonly instances: RunningInstances;
  readonly scheduler: Scheduler;
  readonly compactor: Compactor;
  readonly gate: Pick<Gate, "residentBytes">;
  readonly poolSize: number;
  readonly diskReserveBytes: number;
  readonly version: string;
  readonly revision: string;
}

/** Registers the gauges that are read at each scrape, and samples the lag of the event loop until disposal. */
export function registerGauges(metrics: Metrics, sources: GaugeSources): Disposable {
  addWork(metrics, sources);
  addClients(metrics, sources);
  addStorage(metrics, sources);
  addProcess(metrics, sources);
  let dueAt = performance.now() + LAG_INTERVAL_MS;
  const timer = setInterval(() => {
    const now = performance.now();
    metrics.eventLoopLagSeconds.observe({}, Math.max(0, now - dueAt) / 1000);
    dueAt = now + LAG_INTERVAL_MS;
  }, LAG_INTERVAL_MS);
  timer.unref();
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

function addWork({ registry }: Metrics, sources: GaugeSources): void {
  const { machines, operations, scheduler, compactor, poolSize } = sources;
  registry.gauge("coppice_operations", "Operations that wait or run, by kind and state.", () =>
    operations.counts().map(({ kind, state, count }) => [{ kind, state }, count] as const),
  );
  registry.gauge("coppice_vms", "Virtual machines, waiting in the pool or in use.", () => {
    const { waiting, inUse } = machines.counts();
    return [
      [{ state: "waiting" }, waiting],
      [{ state: "in_use" }, inUse],
    ] as const;
  });
  registry.gauge("coppice_pool_ready", "Virtual machines in the pool that are fully prepared.", () => [
    [{}, machines.counts().ready],
  ]);
  registry.gauge("coppice_pool_size", "Virtual machines that should wait in the pool.", () => [[{}, poolSize]]);
  registry.gauge("coppice_budget_memory_bytes", "Memory budget of machines and imports: total and used.", () => [
    [{ state: "total" }, scheduler.budget.memoryBytes],
    [{ state: "used" }, scheduler.used.memoryBytes],
  ]);
  registry.gauge("coppice_layer_merges_waiting", "Chains of layers that wait to be merged.", () => [
    [{}, compactor.waitingCount],
  ]);
  registry.gauge("coppice_budget_vcpus", "Virtual CPU budget of virtual machines: total and used.", () => [
    [{ state: "total" }, scheduler.budget.vcpus],
    [{ state: "used" }, scheduler.used.vcpus],
  ]);
}

function addClients({ registry }: Metrics, { operations, eventLogs, instances }: GaugeSources): void {
  registry.gauge("coppice_clients", "Requests that wait for an operation, its events, its output or its input.", () => {
    const { tapsCount, inputsCount } = instances.clients();
    return [
      [{ doing: "wait" }, operations.waitersCount],
      [{ doing: "read_events" }, eventLogs.counts.readers],
      [{ doing: "read_lossless" }, tapsCount],
      [{ doing: "write_next" }, inputsCount],
    ] as const;
  });
}

function addStorage({ registry }: Metrics, { db, layout, diskReserveBytes }: GaugeSources): void {
  let totals: StoreTotals = NO_TOTALS;
  const reading = new SharedReading(() => storeTotals(db), TOTALS_AGE_MS_MAX);
  registry.before(async () => {
    totals = await reading.get();
  });
  const current = (): StoreTotals => totals;
  registry.gauge("coppice_storage_bytes", "Allocated size of stored objects, by class.", () => [
    [{ class: "layers" }, current().layerBytes],
    [{ class: "merged_layers" }, current().mergedLayerBytes],
    [{ class: "files" }, current().fileBytes],
    [{ class: "database" }, databaseBytes(layout.database)],
  ]);
  registry.gauge("coppice_storage_objects", "Number of stored objects, by class.", () => [
    [{ class: "images" }, current().imageCount],
    [{ class: "layers" }, current().layerCount],
    [{ class: "merged_layers" }, current().mergedLayerCount],
    [{ class: "files" }, current().fileCount],
  ]);
  registry.gauge(
    "coppice_disk_bytes",
    "Size of the data directory's file system: total, free, and the reserve.",
    () => {
      const { blocks, bavail, bsize } = statfsSync(layout.root);
      return [
        [{ state: "total" }, blocks * bsize],
        [{ state: "free" }, bavail * bsize],
        [{ state: "reserve" }, diskReserveBytes],
      ];
    },
  );
  registry.gauge("coppice_disk_files", "Number of files (inodes) of the data directory's file system.", () => {
    const room = inodeRoom(statfsSync(layout.root));
    return Object.entries(room ?? {}).map(([state, count]) => [{ state }, count] as const);
  });
}

function addProcess({ registry }: Metrics, { gate, version, revision }: GaugeSources): void {
  registry.gauge("coppice_build_info", "Always 1; the labels are the version and revision of the daemon.", () => [
    [{ version, revision }, 1],
  ]);
  registry.gauge("process_resident_memory_bytes", "Resident memory of the daemon.", () => [
    [{}, process.memoryUsage.rss()],
  ]);
  registry.gauge(
    "coppice_gate_resident_memory_bytes",
    "Resident memory of the process that connects to the outside; 0 while there is none.",
    () => [[{}, gate.residentBytes()]],
  );
  registry.gauge(
    "process_cpu_seconds_total",
    "User and system time of the daemon.",
    () => {
      const { user, system } = process.cpuUsage();
      return [[{}, (user + system) / 1e6]];
    },
    "counter",
  );
  const startedAt = Date.now() / 1000 - process.uptime();
  registry.gauge("process_start_time_seconds", "Start time of the daemon, since the epoch.", () => [[{}, startedAt]]);
}

/** Size of the database with its write-ahead log, which can be larger than the database file. */
function databaseBytes(path: string): number {
  return [path, `${path}-wal`].reduce((sum, file) => sum + (statSync(file, { throwIfNoEntry: false })?.size ?? 0), 0);
}
