import { findSandbox, type SandboxRow } from "../../../src/db/sandboxes/rows.ts";
import { history, images } from "../../../src/db/schema.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import { given } from "../../../src/domain/given.ts";
import type { AccountId, ImageId, LayerId, OperationId, SandboxId } from "../../../src/domain/ids.ts";
import { NO_DEFAULTS } from "../../../src/domain/image-defaults.ts";
import type { NetworkRequest } from "../../../src/domain/network.ts";
import { generatedName, type SandboxState, type SandboxSubmission } from "../../../src/domain/sandbox.ts";
import { silentLog } from "../../../src/log.ts";
import { EventLogs } from "../../../src/storage/events/event-logs.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { AccountChanges } from "../../../src/supervisor/account-changes.ts";
import type { CheckpointSubmission } from "../../../src/supervisor/instance/checkpoint-instance.ts";
import { ForkedStarts } from "../../../src/supervisor/instance/forks/forked-starts.ts";
import { notRunning } from "../../../src/supervisor/instance/refusals.ts";
import type { RunningInstances } from "../../../src/supervisor/instance/running-instances.ts";
import type { SandboxLife, SandboxRun } from "../../../src/supervisor/kinds/sandbox.ts";
import type { Operations } from "../../../src/supervisor/operations/operations.ts";
import { Scheduler } from "../../../src/supervisor/operations/scheduler.ts";
import { type Prepared, prepared, type WorkContext } from "../../../src/supervisor/operations/work.ts";
import { Lives } from "../../../src/supervisor/sandboxes/lives.ts";
import { Sandboxes } from "../../../src/supervisor/sandboxes/sandboxes.ts";
import { untilAborted } from "../../../src/system/waiting.ts";
import { wallClock } from "../../../src/system/wall-clock.ts";
import { type OperationsStore, operationsStore, testOperations } from "../operations.ts";
import { NO_MACHINES } from "./no-machines.ts";
import { NO_MEMORY } from "./no-memory.ts";
import type { StoryStep } from "./story.ts";

export const ACCOUNT = "alice" as AccountId;
export const BASE = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as ImageId;

export const SANDBOX: SandboxSubmission = {
  get name() {
    return generatedName();
  },
  imageId: BASE,
  timeoutSeconds: 3600,
  idleTimeoutSeconds: null,
  onTimeout: "pause",
  autoResume: true,
  pauseMemory: false,
  metadata: {},
  network: null,
  publicPorts: [],
  env: { SECRET: "canary" },
  cwd: null,
  user: null,
  resources: { vcpus: 1, memoryBytes: 1, diskBytes: 1 },
  files: [],
  start: null,
  boot: null,
  discardsPauses: false,
};

/** A machine that exists only as a promise: of its end, which a request or a test brings about. */
class Machine {
  readonly #ended = Promise.withResolvers<void>();
  readonly isRunning = true;
  readonly processes = [];
  readonly command = { signal: () => this.#ended.resolve(), exit: this.#ended.promise };

  get ended(): Promise<void> {
    return this.#ended.promise;
  }

  die(): void {
    this.#ended.reject(new ApiError("unavailable", "the machine died"));
  }
}

export interface SceneOptions {
  readonly keepStates?: number;
  readonly clock?: () => number;
  /** holds the start of the first machine until it resolves */
  readonly starting?: Promise<void>;
  /** the same for the later ones */
  readonly resuming?: Promise<void>;
  /** holds captures until it resolves */
  readonly capturing?: Promise<void>;
  /** holds checkpoints until it resolves */
  readonly checkpointing?: Promise<void>;
  /** as `LivesOptions.endMsMax` */
  readonly endMsMax?: number | undefined;
}

/** Sandboxes over the real operations and database, with machines that are only simulated. */
export class SandboxScene implements AsyncDisposable {
  readonly machines = new Map<OperationId, Machine>();
  readonly operations: Operations;
  readonly sandboxes: Sandboxes;
  readonly lives: Lives;
  readonly eventLogs: EventLogs;
  readonly store: OperationsStore;
  /** sets the network of an instance, as `RunningInstances.setNetwork` does */
  setNetwork: RunningInstances["setNetwork"] = async () => true;
  /** the usage of an instance, as `RunningInstances.usage` reads it */
  usage: RunningInstances["usage"] = async () => null;
  readonly #options: SceneOptions;
  readonly #layer: LayerId;
  #startsCount = 0;

  constructor(store: OperationsStore, options: SceneOptions = {}) {
    this.store = store;
    this.#options = options;
    const { db, layout } = store;
    this.#layer = db.orm.select().from(images).get()?.layerId as LayerId;
    const step = { imageId: BASE, operationId: Bun.randomUUIDv7() as OperationId, sizeBytes: 1, createdAt: 1 };
    db.orm.insert(history).values(step).onConflictDoNothing().run();
    const accounts = new Accounts();
    this.eventLogs = new EventLogs(layout, accounts, wallClock());
    const clock = options.clock ?? Date.now;
    const claimed = new Set<OperationId>();
    const instances = {
      find: (id: OperationId) => this.machines.get(id) ?? null,
      current: (id: OperationId) => this.machines.get(id) ?? null,
      isAwaited: () => false,
      eventsOf: () => null,
      stats: () => null,
      usage: async (id: OperationId) => await this.usage(id),
      setNetwork: (id: OperationId, network: NetworkRequest | null) => this.setNetwork(id, network),
      claim: (id: OperationId) => {
        if (!this.machines.has(id)) throw notRunning();
        if (claimed.has(id)) throw new ApiError("conflict", "a checkpoint of the instance is under way");
        claimed.add(id);
        return { [Symbol.dispose]: () => void claimed.delete(id) };
      },
    } as unknown as RunningInstances;
    this.lives = new Lives({
      db,
      instances,
      eventLogs: this.eventLogs,
      clock,
      ...given({ endMsMax: options.endMsMax }),
    });
    const scheduler = new Scheduler({ memoryBytes: 1e15, vcpus: 1e6 }, Date.now, accounts);
    const more = { accounts, scheduler, instances, eventLogs: this.eventLogs };
    this.operations = testOperations(store, (id) => (context, request) => this.#work(id, context, request), more);
    const layers = new LayerStore({ layout, chainOf: () => [] });
    const { keepStates = 20 } = options;
    this.sandboxes = new Sandboxes({
      ...{ db, clock, log: silentLog, accounts, operations: this.operations, instances, scheduler, lives: this.lives },
      ...{ keepStates, layers, changes: new AccountChanges(), layout, machines: NO_MACHINES, diskReserveBytes: 0 },
      starts: new ForkedStarts(),
      memory: NO_MEMORY,
    });
  }

  static async open(options: SceneOptions = {}): Promise<SandboxScene> {
    return new SandboxScene(await operationsStore(ACCOUNT, BASE), options);
  }

  /** The steps that the log of a sandbox has. */
  async story(id: SandboxId): Promise<StoryStep[]> {
    return (await this.#events(id)).flatMap(({ type, data }) => (type === "state" ? [data as StoryStep] : []));
  }

  /** The types of the events of a sandbox. */
  async types(id: SandboxId): Promise<string[]> {
    return (await this.#events(id)).map(({ type }) => type);
  }

  async #events(id: SandboxId): Promise<{ readonly type: string; readonly data: unknown }[]> {
    const all: { readonly type: string; readonly data: unknown }[] = [];
    const hasEnded = findSandbox(this.store.db, id)?.state === "ended";
    const scan = this.eventLogs.scan(id, { first: 0, hasEnded, onOutput: () => undefined });
    for await (const events of scan) {
      for (const { type, payload } of events) {
        all.push({ type, data: JSON.parse(Buffer.from(payload).toString("utf8")) });
      }
    }
    return all;
  }

  /** The operation of the machine of a sandbox. @throws Error when it has none */
  operationOf(id: SandboxId): OperationId {
    const operationId = findSandbox(this.store.db, id)?.operationId ?? null;
    if (operationId === null) throw new Error("a sandbox without a machine");
    return operationId;
  }

  /** Ends all work, and keeps the store. */
  async stop(): Promise<void> {
    await this.operations[Symbol.asyncDispose]();
    this.sandboxes[Symbol.dispose]();
    await this.lives[Symbol.asyncDispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
    this.store.db[Symbol.dispose]();
    await this.store[Symbol.asyncDispose]();
  }

  async #work(id: OperationId, context: WorkContext, request: object): Promise<Prepared> {
    if ("instanceId" in request) {
      await untilAborted(this.#options.checkpointing ?? Promise.resolve(), context.signal);
      return this.#checkpoint(request as CheckpointSubmission);
    }
    const { sandboxId, imageId } = request as SandboxRun;
    await using life = await this.lives.begin({ id, accountId: ACCOUNT, kind: "sandbox" }, sandboxId);
    const machine = new Machine();
    const { starting, resuming } = this.#options;
    this.#startsCount += 1;
    await untilAborted((this.#startsCount === 1 ? starting : resuming) ?? Promise.resolve(), context.signal);
    this.machines.set(id, machine);
    using _gone = { [Symbol.dispose]: () => void this.machines.delete(id) };
    life.started();
    const signal = AbortSignal.any([context.signal, life.abort]);
    await untilAborted(machine.ended, signal);
    const { ending } = life as SandboxLife;
    if (ending === null) throw new ApiError("unavailable", "the machine of the sandbox ended by itself");
    if (ending === "discard") return prepared(new AsyncDisposableStack(), { result: {} }, () => undefined);
    await untilAborted(this.#options.capturing ?? Promise.resolve(), signal);
    const sandbox = { id: sandboxId, instance: id, reason: ending.reason, isPaused: true };
    const tag = ending.tag ?? undefined;
    return prepared(new AsyncDisposableStack(), { ...this.#image(imageId), tag, sandbox }, () => undefined);
  }

  #checkpoint({ sandboxId, instanceId, imageId, tag }: CheckpointSubmission): Prepared {
    if (sandboxId === undefined) throw new Error("a checkpoint of no sandbox");
    const sandbox = { id: sandboxId, instance: instanceId, reason: "checkpoint" as const, isPaused: false };
    const publication = { ...this.#image(imageId), tag: tag ?? undefined, sandbox };
    return prepared(new AsyncDisposableStack(), publication, () => undefined);
  }

  #image(parentId: ImageId) {
    const id = Bun.randomUUIDv7() as ImageId;
    const image = { id, parentId, layerId: this.#layer, sizeBytes: 0, defaults: NO_DEFAULTS };
    return { result: { image: id }, image };
  }
}

export const FOREVER_MS = 60_000;
export const NEVER = new AbortController().signal;

export function rowOf({ store }: SandboxScene, id: SandboxId): SandboxRow {
  const row = findSandbox(store.db, id);
  if (row === null) throw new Error("no such sandbox");
  return row;
}

export async function becomes(scene: SandboxScene, id: SandboxId, state: SandboxState): Promise<SandboxRow> {
  await scene.sandboxes.settled(id, (now) => now === state, FOREVER_MS, NEVER);
  return rowOf(scene, id);
}

export async function running(scene: SandboxScene, more: Partial<SandboxSubmission> = {}): Promise<SandboxRow> {
  const { id } = await scene.sandboxes.create(ACCOUNT, { ...SANDBOX, ...more });
  return await becomes(scene, id, "running");
}
