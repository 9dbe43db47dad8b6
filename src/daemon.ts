import { cpus, totalmem } from "node:os";
import { join } from "node:path";
import { createApp } from "./api/app.ts";
import { type E2bListenerParts, openE2b } from "./api/e2b/open.ts";
import { listenForOperator } from "./api/operator/control.ts";
import { listen } from "./api/server.ts";
import type { CgroupTree } from "./cgroup/cgroup.ts";
import type { Config } from "./config/config.ts";
import { proxyOf } from "./config/network.ts";
import { type Database, openDatabase } from "./db/database.ts";
import { layerIds } from "./db/images/layers.ts";
import { countTokens } from "./db/tokens.ts";
import { probeDatabase } from "./db/totals.ts";
import { Accounts } from "./domain/account/accounts.ts";
import { openIngress } from "./ingress/open.ts";
import type { Log } from "./log.ts";
import { createMetrics, type Metrics } from "./metrics.ts";
import { GateClient } from "./network/gate/client.ts";
import { ROOM_MS_MAX } from "./service/e2b/readiness.ts";
import { type Leave, OperatorDesk } from "./service/operator/desk.ts";
import type { ApplianceParts, ServiceLimits } from "./service/parts.ts";
import { createService } from "./service/service.ts";
import { sessionUseCases } from "./service/sessions.ts";
import { tokenVerifier } from "./service/tokens.ts";
import { EventLogs } from "./storage/events/event-logs.ts";
import { requireSpace } from "./storage/free-space.ts";
import { IndexMemory } from "./storage/index/index-memory.ts";
import { LayerStore } from "./storage/layers/layer-store.ts";
import { type DataLayout, dataLayout, lockData } from "./storage/layout.ts";
import { TokenKeys } from "./storage/token-keys.ts";
import { AccountChanges } from "./supervisor/account-changes.ts";
import { DiskGuard } from "./supervisor/disk-guard.ts";
import { registerGauges } from "./supervisor/gauges.ts";
import { importCost } from "./supervisor/imports/import-bounds.ts";
import { ForkedStarts } from "./supervisor/instance/forks/forked-starts.ts";
import { RunningInstances } from "./supervisor/instance/running-instances.ts";
import { OrphanSweep, startJanitor, sweep } from "./supervisor/janitor.ts";
import { InstanceForks, type InstanceForkTools } from "./supervisor/kinds/instance-forks.ts";
import { kindsAtWork } from "./supervisor/kinds/kinds.ts";
import { openCgroups } from "./supervisor/machines/cgroups.ts";
import { MachineProvider } from "./supervisor/machines/machine-provider.ts";
import { openPlatform } from "./supervisor/machines/open-platform.ts";
import { ReservedPlace } from "./supervisor/machines/reserved-place.ts";
import { ScratchDisks, scratchBytes } from "./supervisor/machines/scratch-disks.ts";
import { MemoryImages } from "./supervisor/memory/memory-images.ts";
import { Compactor } from "./supervisor/merging/compact.ts";
import { InstanceNetworks } from "./supervisor/network/instance-networks.ts";
import { OperationLog } from "./supervisor/operations/operation-log.ts";
import { Operations } from "./supervisor/operations/operations.ts";
import { Requests } from "./supervisor/operations/requests.ts";
import { type Cost, costOf, Scheduler } from "./supervisor/operations/scheduler.ts";
import { readinessOf } from "./supervisor/readiness.ts";
import { Lives } from "./supervisor/sandboxes/lives.ts";
import { Sandboxes } from "./supervisor/sandboxes/sandboxes.ts";
import { settle } from "./supervisor/settle.ts";
import { survey } from "./supervisor/survivors/survey.ts";
import { Builds } from "./supervisor/templates/builds.ts";
import { ToolNetwork } from "./system/tool-network.ts";
import { untilAborted } from "./system/waiting.ts";
import { wallClock } from "./system/wall-clock.ts";
import { REVISION, VERSION } from "./version.ts";
import { assetsOf, type VmAssets } from "./vm/assets.ts";
import { UidPool } from "./vm/jail/uid-pool.ts";
import { HeldRoots } from "./vm/jail/vmm-roots.ts";
import { templatesMemoryBytes } from "./vm/machine-memory.ts";
import { templateShape } from "./vm/templates.ts";

/** Default memory budget, as a share of the host's memory. */
const MEMORY_SHARE = 0.75;
/** Default CPU budget: virtual CPUs for each CPU of the host, because most commands wait more than they compute. */
const VCPUS_PER_CPU = 2;
/** Grace period for requests when the daemon stops, in `milliseconds`. */
const STOP_GRACE_MS = 2000;

/** A running appliance. Disposal stops it and leaves no processes or temporary files behind. */
export interface Daemon extends AsyncDisposable {
  readonly url: string;
  /** True until the first token has been made: no client can have used the appliance. */
  isNew(): boolean;
  /** False when the database does not answer: the daemon must be restarted. */
  isAlive(): boolean;
  /** where the operator asks for stops */
  readonly desk: OperatorDesk;
}

/** Dependencies of machines, and of everything that uses machines. */
interface HostParts {
  readonly accounts: Accounts;
  readonly layout: DataLayout;
  readonly cgroups: CgroupTree;
  readonly scratchDisks: ScratchDisks;
  readonly log: Log;
  readonly uids: UidPool;
  readonly heldRoots: HeldRoots;
  readonly assets: () => Promise<VmAssets>;
}

/** Dependencies of all long-running work. */
interface SharedParts extends HostParts {
  readonly db: Database;
  readonly layers: LayerStore;
  readonly clock: () => number;
  readonly orphans: OrphanSweep;
  readonly machines: MachineProvider;
  readonly diskGuard: DiskGuard;
  readonly indexMemory: IndexMemory;
  readonly metrics: Metrics;
  readonly scheduler: Scheduler;
}

/** Dependencies of operations. */
interface WorkParts extends SharedParts, Pick<InstanceForkTools, "starts" | "diskReserveBytes"> {
  readonly compactor: Compactor;
  readonly network: ToolNetwork;
  readonly gate: GateClient;
  readonly requests: Requests;
  readonly instances: RunningInstances;
  readonly eventLogs: EventLogs;
  readonly lives: Lives;
  readonly memory: MemoryImages;
}

/**
 * Starts all parts of the appliance in order; they are disposed in reverse. The way to run machines is probed in the
 * background, so the API answers before machines can run.
 * @throws Error when the data directory is in use, or a requirement is missing
 */
export async function startDaemon(config: Config, processLog: Log, leave: Leave = "never"): Promise<Daemon> {
  await using stack = new AsyncDisposableStack();
  const [clock, changes, operationLog] = [Date.now, new AccountChanges(), new OperationLog(Date.now)];
  const log = operationLog.listenTo(processLog);
  const layout = await openData(config.dataDir, stack);
  const accounts = new Accounts({ mergedLayers: { max: config.layers.mergedShare } });
  const db = stack.use(openDatabase(layout.database, "migrate", { accounts }));
  const cgroups = stack.use(await openCgroups(layout.root, log));
  const layers = stack.use(new LayerStore({ layout, chainOf: (topId) => layerIds(db, topId) }));
  const janitorOptions = { db, layout, layers, log, clock, changes, ...retentionsOf(config) };
  const host = hostOf(config, { accounts, layout, cgroups, log });
  const left = await survey({ ...host, db, layers });
  await sweep(janitorOptions, cgroups, left.machines);
  const requests = new Requests(db, layout);
  await requests.sweep();
  const orphans = stack.use(new OrphanSweep(janitorOptions));
  const desk = new OperatorDesk({ ...janitorOptions, version: VERSION, leave, cgroups });
  stack.use(await listenForOperator(layout.control, desk, log));
  const diskGuard = stack.use(openDiskGuard(config, host));
  // Work that can wait starts when the daemon listens, so that clients are answered sooner.
  const listening = Promise.withResolvers<void>();
  const machines = stack.use(openMachines(config, host, listening.promise));
  const [metrics, indexMemory, instances] = [createMetrics(), new IndexMemory(), new RunningInstances()];
  const scheduler = new Scheduler(budget(config), clock, accounts);
  const shared = { ...host, db, layers, clock, orphans, machines, diskGuard, indexMemory, metrics, scheduler };
  const compactor = stack.use(openCompactor(config, shared));
  const [network, gate] = [stack.use(new ToolNetwork()), stack.use(openGate(config, shared))];
  const memory = stack.use(await MemoryImages.open({ ...shared, instances, ...config.limits }));
  const eventLogs = new EventLogs(layout, accounts, wallClock(), config.limits.sandboxLogBytes);
  const lives = stack.use(new Lives({ db, instances, eventLogs, clock }));
  const more = { requests, instances, starts: new ForkedStarts(), diskReserveBytes: config.limits.diskReserveBytes };
  const work = { ...shared, ...more, compactor, network, gate, eventLogs, lives, memory };
  const operations = stack.use(openOperations(config, work));
  const sandboxes = stack.use(new Sandboxes({ ...work, ...config.sandboxes, operations, changes }));
  const builds = stack.use(new Builds({ ...work, operations, changes }));
  stack.use(openGauges(config, { ...work, operations }));
  for (const follower of [changes, operationLog, work.starts]) stack.use(follower.follow(operations.changes));
  for (const [id, survivor] of left.survivors) survivor.use(instances.await(id));
  for (const recovered of [sandboxes, operations, builds]) recovered.recover(left);

  const keys = await TokenKeys.open(layout.keys);
  const service = createService({
    ...work,
    keys,
    appliance: appliancePartsOf(config, { scheduler, machines, gate, desk, retention: janitorOptions }),
    ...{ operations, sandboxes, builds, changes, operationLog, forks: new InstanceForks({ ...work, operations }) },
    limits: limitsOf(config),
    defaultRegistry: config.registries.default,
    version: VERSION,
  });
  const verifyToken = tokenVerifier(db, keys, clock);
  const api = { service, accounts, verifyToken, metrics, log };
  const ports = await openOutside(config, { ...api, directory: layout.runtime, clock }, stack);
  const app = createApp({ ...api, publicUrl: config.publicUrl, web: webOf(config, { ...api, db, keys, clock }) });
  const listener = listen({ app, ...listenOptions(config) });
  stack.defer(() => listener.stop(STOP_GRACE_MS));
  gate.protectPorts([listener.port, ...ports]);
  desk.open({ operations, instances, listener });
  listening.resolve();
  stack.use(startJanitor(janitorOptions));
  // These end clients that follow events and changes, which would otherwise delay the stop.
  for (const followed of [eventLogs, changes]) stack.use(followed);
  orphans.begin();
  void listener.composed.then(() => settle(db));
  const owned = stack.move();
  return {
    url: listener.url,
    isNew: () => countTokens(db, { now: clock() }) === 0,
    isAlive: () => answers(db, log),
    desk,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

function hostOf({ vm }: Config, parts: Pick<HostParts, "accounts" | "layout" | "cgroups" | "log">): HostParts {
  const { layout } = parts;
  return {
    ...parts,
    scratchDisks: new ScratchDisks({ templates: layout.scratch, temporary: layout.tmp }),
    ...{ uids: new UidPool(vm.uidBase, vm.uidCount), heldRoots: new HeldRoots(), assets: assetsOf(layout.root) },
  };
}

function openDiskGuard({ limits }: Config, { layout, log }: Pick<HostParts, "layout" | "log">): DiskGuard {
  return new DiskGuard({ directory: layout.root, reserveBytes: limits.diskReserveBytes, log });
}

function openGauges({ pool, limits }: Config, parts: WorkParts & { readonly operations: Operations }): Disposable {
  const { diskReserveBytes } = limits;
  const build = { version: VERSION, revision: REVISION };
  return registerGauges(parts.metrics, { ...parts, ...build, poolSize: pool.size, diskReserveBytes });
}

/** Opens the listeners for clients from outside that the settings have. Returns their ports. */
async function openOutside(
  { ingress, e2b }: Config,
  parts: E2bListenerParts,
  stack: AsyncDisposableStack,
): Promise<number[]> {
  const doors = [openIngress(ingress, { ...parts, ingress: parts.service.ingress }), await openE2b(e2b, parts)];
  return doors.flatMap((door) => stack.use(door)?.port ?? []);
}

/** Sign-in on the page; null: there is no page. */
function webOf({ web, listen }: Config, parts: Parameters<typeof sessionUseCases>[0]) {
  return web.enabled ? { sessions: sessionUseCases(parts), isTls: listen.tlsCert !== null } : null;
}

/** Makes the data directory and locks it. @throws Error when it is in use */
async function openData(directory: string, stack: AsyncDisposableStack): Promise<DataLayout> {
  const layout = dataLayout(directory);
  await layout.ensure();
  const lock = await lockData(layout);
  if (lock === null) throw new Error(`the data directory ${layout.root} is in use by another daemon`);
  stack.use(lock);
  return layout;
}

function retentionsOf({ operations, files, images }: Config) {
  return { ...images, operationsRetentionMs: operations.retentionMs, filesTtlMs: files.ttlMs };
}

function appliancePartsOf(
  { dataDir: dataDirectory, vm, pool }: Config,
  { gate, ...parts }: Omit<ApplianceParts, "poolSize" | "health"> & { readonly gate: GateClient },
): ApplianceParts {
  return { ...parts, poolSize: pool.size, health: { dataDirectory, emulation: vm.emulation, outside: gate } };
}

function listenOptions({ listen: { tlsCert, tlsKey, host, port } }: Config) {
  const tls = tlsCert !== null && tlsKey !== null ? { tls: { cert: tlsCert, key: tlsKey } } : {};
  return { host, port, ...tls };
}

function answers(db: Database, log: Log): boolean {
  try {
    probeDatabase(db);
    return true;
  } catch (error) {
    log.error("the database does not answer", { error });
    return false;
  }
}

/** @param due the search for a way to run machines begins after it */
function openMachines(config: Config, parts: HostParts, due: Promise<void>): MachineProvider {
  const { vm, pool } = config;
  const options = {
    ...parts,
    emulation: vm.emulation,
    probeTimeoutMs: vm.probeTimeoutMs,
    poolSize: pool.size,
    templatesMemoryBytes: templatesMemoryBytes(budget(config).memoryBytes),
    shape: templateShape({ vcpus: vm.vcpusDefault, memoryBytes: vm.memoryBytesDefault }),
    diskBytes: vm.diskBytesDefault,
    diskBytesMax: scratchBytes(vm.maxima.diskBytes),
  };
  return new MachineProvider({
    open: async (signal) => {
      await untilAborted(due, signal);
      return await openPlatform(options, signal);
    },
    shape: options.shape,
    giveUpMs: vm.probeGiveUpMs,
    log: parts.log,
  });
}

/** The process that connects to the outside; it starts with the first connection. */
function openGate({ vm, network }: Config, parts: SharedParts): GateClient {
  return new GateClient({
    launcher: (signal) => parts.machines.launcher(signal),
    accounts: parts.accounts,
    cgroups: parts.cgroups,
    // The first after those of the virtual machines.
    uid: vm.uidBase + vm.uidCount,
    directory: join(parts.layout.runtime, "gate"),
    settings: { resolvers: network.resolvers, proxy: proxyOf(network), proxyBypass: network.proxyBypass },
    log: parts.log,
  });
}

function budget(config: Config): Cost {
  return {
    memoryBytes: config.vm.memoryBudgetBytes ?? Math.floor(totalmem() * MEMORY_SHARE),
    vcpus: config.vm.cpuBudget ?? cpus().length * VCPUS_PER_CPU,
  };
}

/** How often `cost` fits into the budget `total`. */
function timesWithin(total: Cost, cost: Cost): number {
  return Math.floor(Math.min(total.memoryBytes / cost.memoryBytes, total.vcpus / cost.vcpus));
}

function limitsOf(config: Config): ServiceLimits {
  const total = budget(config);
  const shape = { vcpus: config.vm.vcpusDefault, memoryBytes: config.vm.memoryBytesDefault };
  return {
    instanceTimeoutSecondsMax: config.limits.instanceTimeoutMax,
    sandboxTimeoutSecondsMax: config.limits.sandboxTimeoutMax,
    fileBytesMax: config.limits.fileBytesMax,
    diskReserveBytes: config.limits.diskReserveBytes,
    network: { allow: config.network.allow, record: config.network.record },
    ingress: config.ingress,
    vcpusDefault: config.vm.vcpusDefault,
    vcpusMax: config.vm.maxima.vcpus,
    memoryBytesDefault: config.vm.memoryBytesDefault,
    memoryBytesMax: config.vm.maxima.memoryBytes,
    diskBytesDefault: config.vm.diskBytesDefault,
    diskBytesMax: config.vm.maxima.diskBytes,
    roomMsMax: ROOM_MS_MAX,
    instanceCountMax: timesWithin(total, costOf(shape)),
    importCountMax: timesWithin(total, importCost(shape, total.memoryBytes)),
  };
}

function openCompactor(config: Config, parts: SharedParts): Compactor {
  const compactor = new Compactor({
    ...parts,
    shape: templateShape({ vcpus: config.vm.vcpusDefault, memoryBytes: config.vm.memoryBytesDefault }),
    diskBytesMax: scratchBytes(config.vm.maxima.diskBytes),
    diskReserveBytes: config.limits.diskReserveBytes,
  });
  void parts.orphans.ended.then(() => compactor.start());
  return compactor;
}

function openOperations(config: Config, parts: WorkParts): Operations {
  const { db, layout, log, clock, machines, metrics, scheduler, orphans } = parts;
  const { diskReserveBytes, imageBytesMax, imageEntriesMax } = config.limits;
  const limits = { bytesMax: imageBytesMax, entriesMax: imageEntriesMax };
  const shape = { vcpus: config.vm.vcpusDefault, memoryBytes: config.vm.memoryBytesDefault };
  const memoryBudgetBytes = scheduler.budget.memoryBytes;
  const registries = config.registries.hosts;
  const place = new ReservedPlace();
  const networks = new InstanceNetworks({ ...parts, settings: config.network });
  return new Operations({
    eventLogs: parts.eventLogs,
    db,
    log,
    clock,
    metrics,
    scheduler,
    requests: parts.requests,
    kinds: kindsAtWork({
      ...parts,
      ...config.checkpoint,
      registries,
      shape,
      memoryBudgetBytes,
      limits,
      networks,
      keeping: { vmsDirectory: layout.vms, daemon: VERSION, assets: parts.assets, log },
      diskReserveBytes,
      place,
    }),
    samplesOf: (id, signal) => parts.instances.stats(id, signal),
    requireSpace: () => requireSpace(layout.root, diskReserveBytes),
    spaceSettled: (signal) => parts.diskGuard.settled(signal),
    readiness: () => readinessOf({ db, layout, machines, diskReserveBytes }),
    machinesReady: async (signal) => {
      await untilAborted(orphans.ended, signal);
      await machines.ready(signal);
    },
    accounts: parts.accounts,
  });
}
