import { CgroupGoneError, type CgroupStats, samples } from "../../cgroup/stats.ts";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { ImageDefaults } from "../../domain/image-defaults.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import { Spid } from "../../domain/log-event.ts";
import type { NetworkRequest } from "../../domain/network.ts";
import type { CheckedCommand } from "../../domain/spawn.ts";
import { decodedStdin, stdinBytes } from "../../domain/stdin.ts";
import type { EventLog } from "../../storage/events/event-logs.ts";
import type { LayerChain } from "../../storage/layers/layer-store.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import { untilAborted } from "../../system/waiting.ts";
import type { AgentExit } from "../../vm/agent/process-exit.ts";
import type { InstanceNetwork } from "../network/instance-network.ts";
import type { AtStop } from "../operations/options.ts";
import { adoptNetwork } from "./adopt-network.ts";
import type { InstanceKeeper } from "./adoption/instance-keeper.ts";
import { execSpec } from "./exec-spec.ts";
import type { InstanceProcess, InstanceRecord } from "./instance-process.ts";
import { ProcessLog } from "./process-log.ts";
import { beingAdopted, notRunning } from "./refusals.ts";
import type { RunningInstance } from "./running-instance.ts";
import type { TimeLimit, TimeLimitRecord } from "./time-limit.ts";

const STATS_INTERVAL_MS = 1000;

/** The parts of an instance that stay the same when its machine is replaced. */
export interface InstanceParts {
  /** time limit of the command */
  readonly limit: TimeLimit;
  readonly hostname: string;
  readonly events: EventLog;
  readonly network: InstanceNetwork;
  /** the attached layers; absent: none */
  readonly image?: Pick<LayerChain, "ids">;
  /** number of forks with memory between the first of its machines and this one; absent: none */
  readonly generation?: number;
  /** keeps the record with which it outlives the service; absent: it ends with the service */
  readonly keeper?: InstanceKeeper | undefined;
}

/** An instance whose command has started. */
export interface StartedInstance {
  /** host path of the scratch */
  readonly scratchPath: string;
  /** when the command started, on the monotonic clock, in `milliseconds` */
  readonly startedAt: number;
}

/** The same as plain data, from which the instance can be resumed. It contains neither the event log nor the machine. */
export interface ResumableInstance extends Omit<StartedInstance, "startedAt"> {
  /** time since the start of the command, in `milliseconds` */
  readonly ranMs: number;
  readonly limit: TimeLimitRecord;
  readonly instance: InstanceRecord;
  /** as in `InstanceParts` */
  readonly generation?: number;
}

/** The handle of an operation's instance, which gets another machine when it loses one before the command. Disposal ends it. */
export interface InstanceHandle extends Disposable {
  readonly parts: InstanceParts;
  /** null until the command has started */
  started: StartedInstance | null;
  /** Makes `instance` the current one until the result is disposed. It replaces the one with the earlier machine. */
  enter(instance: RunningInstance): Disposable;
}

/** A copy of an instance that is being made: of its files, or of its machine. */
export type InstanceClaim = "checkpoint" | "fork" | "pause";

interface ExecOptions {
  /** time limit in `milliseconds`; null: none */
  readonly timeoutMs: number | null;
  /** those of the image */
  readonly defaults: ImageDefaults;
  /** abandons the start while it waits for the guest to accept it */
  readonly signal: AbortSignal;
  /** called with the process before its first event */
  readonly onProcess?: ((process: InstanceProcess) => void) | undefined;
}

/** A listener for the starts of one process. */
interface Follower {
  readonly spid: number;
  readonly listener: (process: InstanceProcess) => void;
}

/** Finds the running instance of an operation. An instance that loses its machine before its command begins gets another one. */
export class RunningInstances {
  readonly #handles = new Map<OperationId, Handle>();
  readonly #followers = new Map<OperationId, Set<Follower>>();
  /** what has a claim on instances */
  readonly #claimed = new Map<OperationId, InstanceClaim>();
  /** instances of a former process whose machines are not opened yet */
  readonly #awaited = new Set<OperationId>();

  /** Opens the handle of an operation, which must not have one yet. */
  open(id: OperationId, parts: InstanceParts): InstanceHandle {
    const onProcess = (process: InstanceProcess) => this.#announce(id, process);
    const onEnter = () => this.#awaited.delete(id);
    const handle = new Handle(parts, { onProcess, onEnter, onOver: () => this.#handles.delete(id) });
    this.#handles.set(id, handle);
    return handle;
  }

  /** Announces the instance of a former process, until it is there or the result is disposed of. */
  await(id: OperationId): Disposable {
    this.#awaited.add(id);
    return { [Symbol.dispose]: () => void this.#awaited.delete(id) };
  }

  /** True for the instance of a former process whose machine is not opened yet. */
  isAwaited(id: OperationId): boolean {
    return this.#awaited.has(id);
  }

  /** As `find`, for a request. @throws ApiError `unavailable` for an instance of a former process that is not there yet */
  current(id: OperationId): RunningInstance | null {
    if (this.#awaited.has(id)) throw beingAdopted();
    return this.find(id);
  }

  /** The current instance of an operation; null when it has no machine now. */
  find(id: OperationId): RunningInstance | null {
    return this.#handles.get(id)?.current ?? null;
  }

  /**
   * The host's data of an instance, except its log and its machine. To be called during a hold of the instance. Afterwards,
   * either the instance must end, or the record must be used for a copy of the machine.
   * @throws Error without a hold; ApiError `conflict` when the command is not running
   */
  record(id: OperationId): ResumableInstance {
    const { current, started, parts } = this.#handles.get(id) ?? {};
    if (!current || !started || !parts) throw notRunning();
    const { scratchPath, startedAt } = started;
    const ranMs = performance.now() - startedAt;
    const { limit, generation = 0 } = parts;
    return { scratchPath, ranMs, limit: limit.record(), instance: current.record(), generation };
  }

  /** Number of clients that read processes losslessly, and of those that wait for their turn to write to one. */
  clients(): { readonly tapsCount: number; readonly inputsCount: number } {
    const processes = [...this.#handles.values()].flatMap(({ current }) => current?.processes ?? []);
    return {
      tapsCount: processes.reduce((sum, { taps }) => sum + taps.count, 0),
      inputsCount: processes.reduce((sum, { input }) => sum + input.waitingCount, 0),
    };
  }

  /** The parts of an operation's instance that a copy of its machine shares; null when it has no instance. */
  partsOf(id: OperationId): InstanceParts | null {
    return this.#handles.get(id)?.parts ?? null;
  }

  /** How the operation of an instance is left when this process stops. */
  atStop(id: OperationId): AtStop {
    if (this.#awaited.has(id)) return "continues";
    const handle = this.#handles.get(id);
    // It is about to get an instance, or its result is being published.
    if (handle === undefined) return "completes";
    const { current, parts } = handle;
    // A copy with memory cannot begin again: its parent is the only source of its memory.
    if (current?.hasBegun !== true) return parts.generation === undefined ? "begins_again" : "ends";
    if (current.hasEnded) return "completes";
    return parts.keeper?.isKept === true ? "continues" : "ends";
  }

  /** The event log of an operation; null when it has no instance. */
  eventsOf(id: OperationId): EventLog | null {
    return this.#handles.get(id)?.parts.events ?? null;
  }

  /**
   * Id of an event before which the log of a running operation has none of the process `spid`: its readers need not search
   * the whole log, which tens of thousands of processes can share.
   */
  firstEventOf(id: OperationId, spid: number): number {
    return this.#handles.get(id)?.firstEvents[spid] ?? 0;
  }

  /**
   * Extends the time limit of an operation's command to `ms`, counted from the command's start. Returns false when the
   * operation has no instance or its command has ended.
   * @throws ApiError `conflict` when the limit is already longer; as `current` does
   */
  extend(id: OperationId, ms: number): boolean {
    if (this.#awaited.has(id)) throw beingAdopted();
    const handle = this.#handles.get(id);
    if (handle === undefined || handle.current?.hasEnded === true) return false;
    const { limit, keeper } = handle.parts;
    if (limit.ms === 0) throw new ApiError("conflict", "the instance of a sandbox has the deadline of its sandbox");
    if (!limit.extend(ms)) {
      const details = { timeout: limit.ms / 1000 };
      throw new ApiError("conflict", "the time limit of the instance is already longer", details);
    }
    keeper?.update();
    handle.current?.process(Spid.command)?.limit(ms);
    return true;
  }

  /**
   * Replaces the network of an operation's instance; null: it has none. For new connections and lookups it is in force at
   * once, and open connections that it does not permit are reset. Resolves when the guest has adopted it, to false when
   * the operation has no instance or its command has ended.
   * @throws ApiError `conflict` when it has changed too often; other codes when the guest cannot have a network: it has the
   *   one before, then; as `current` does
   */
  async setNetwork(id: OperationId, policy: NetworkRequest | null): Promise<boolean> {
    if (this.#awaited.has(id)) throw beingAdopted();
    const handle = this.#handles.get(id);
    if (handle === undefined || handle.current?.hasEnded === true) return false;
    const { network } = handle.parts;
    const before = network.policy;
    network.change(policy);
    if ((before === null) === (policy === null)) return true;
    try {
      // A machine that comes later gets it with its disks.
      if (handle.current !== null) await adoptNetwork(handle.current, network);
    } catch (error) {
      if (network.policy === policy) network.change(before);
      throw error;
    }
    return true;
  }

  /** True when the instance of an operation has a network or has had one; false when the operation has no instance. */
  hasHadNetwork(id: OperationId): boolean {
    return this.#handles.get(id)?.parts.network.wasOn ?? false;
  }

  /**
   * Reserves an instance for one copy of it, until disposal.
   * @throws ApiError `conflict` when another copy is being made, or the command of the instance is not running
   */
  claim(id: OperationId, claim: InstanceClaim): Disposable {
    if (this.current(id)?.isRunning !== true) throw notRunning();
    const other = this.#claimed.get(id);
    if (other !== undefined) throw new ApiError("conflict", `a ${other} of the instance is under way`);
    this.#claimed.set(id, claim);
    return { [Symbol.dispose]: () => void this.#claimed.delete(id) };
  }

  /**
   * Starts an additional process in an operation's instance, and logs its events. Returns its numbers once it runs; null when
   * the operation has no machine.
   * @throws ApiError `conflict` when the command is not running; `too_many_requests` when too many processes run or wait;
   *   `invalid_path` for a working directory that cannot be entered; the reason of `signal`
   */
  async exec(
    id: OperationId,
    command: CheckedCommand,
    { timeoutMs, defaults, signal, onProcess }: ExecOptions,
  ): Promise<StartedProcess | null> {
    const handle = this.#handles.get(id);
    const instance = this.current(id);
    if (handle === undefined || instance === null) return null;
    const { events, hostname } = handle.parts;
    const { stdin, ...rest } = command;
    const process = instance.exec((spid) => {
      handle.firstEvents[spid] = events.nextId;
      const log = new ProcessLog(events, { spid, truncateOutputAtBytes: command.truncateOutputAtBytes });
      const first = stdin === null ? null : log.counting(decodedStdin(stdin));
      const spec = execSpec(rest, { hostname, timeoutMs: timeoutMs ?? 0, defaults, stdin: first });
      const input = stdin === null ? {} : { stdin_bytes: stdinBytes(stdin), stdin_open: command.stdinOpen };
      return { spec, sink: log.sink(spec, input) };
    }, signal);
    onProcess?.(process);
    await process.started;
    await events.written();
    const { spid, exit } = process;
    const { pid, started } = process.logged();
    return { spid, pid: started === null ? null : pid, exit };
  }

  /**
   * Calls `listener` with the process `spid` of an operation, until disposal: at once when it runs, and whenever a process
   * with that number is started, before its first event.
   * @throws the error of the first call of `listener`
   */
  follow(id: OperationId, spid: number, listener: (process: InstanceProcess) => void): Disposable {
    const follower = { spid, listener };
    const running = this.find(id)?.process(spid) ?? null;
    if (running !== null) listener(running);
    const followers = this.#followers.get(id) ?? new Set();
    this.#followers.set(id, followers.add(follower));
    return {
      [Symbol.dispose]: () => {
        followers.delete(follower);
        if (followers.size === 0 && this.#followers.get(id) === followers) this.#followers.delete(id);
      },
    };
  }

  #announce(id: OperationId, process: InstanceProcess): void {
    for (const { spid, listener } of this.#followers.get(id) ?? []) if (spid === process.spid) listener(process);
  }

  /** The usage of an instance until now, with the space that its scratch takes on the host; null when it has no machine. */
  async usage(id: OperationId): Promise<(CgroupStats & { readonly diskBytes: number }) | null> {
    const instance = this.find(id);
    if (instance === null) return null;
    const scratch = instance.disks?.scratch?.path;
    try {
      const stats = await instance.stats();
      return { ...stats, diskBytes: scratch === undefined ? 0 : await allocatedBytes(scratch) };
    } catch (error) {
      // The machine ended meanwhile.
      if (this.find(id) !== instance || error instanceof CgroupGoneError) return null;
      throw error;
    }
  }

  /**
   * Samples the instance at once and then every second until it ends or `signal` fires; null when it has no machine yet.
   * The figures start again at zero when the machine is replaced.
   */
  stats(id: OperationId, signal: AbortSignal): AsyncIterable<InstanceStats> | null {
    const handle = this.#handles.get(id);
    const first = handle?.latest ?? null;
    return handle === undefined || first === null ? null : samplesOf(handle, first, signal);
  }
}

/** The numbers of a process. */
export interface StartedProcess {
  readonly spid: number;
  /** in the guest; null: it ended before it had one */
  readonly pid: number | null;
  /** its end; rejects when the machine ends before it */
  readonly exit: Promise<AgentExit>;
}

async function* samplesOf(handle: Handle, first: RunningInstance, signal: AbortSignal): AsyncGenerator<InstanceStats> {
  for (
    let instance: RunningInstance | null = first;
    instance !== null;
    instance = await handle.after(instance, signal)
  ) {
    yield* samples(instance, STATS_INTERVAL_MS, signal);
  }
}

interface HandleListeners {
  readonly onProcess: (process: InstanceProcess) => void;
  readonly onEnter: () => void;
  readonly onOver: () => void;
}

class Handle implements InstanceHandle {
  current: RunningInstance | null = null;
  /** the last instance that entered; it stays here after its disposal */
  latest: RunningInstance | null = null;
  started: StartedInstance | null = null;
  readonly parts: InstanceParts;
  /** by the numbers of the additional processes */
  readonly firstEvents: number[] = [];
  readonly #on: HandleListeners;
  #isOver = false;
  /** resolves when another instance enters, or the handle is disposed */
  #changed = Promise.withResolvers<void>();

  constructor(parts: InstanceParts, on: HandleListeners) {
    this.parts = parts;
    this.#on = on;
  }

  enter(instance: RunningInstance): Disposable {
    instance.listen(this.#on.onProcess);
    this.current = instance;
    this.latest = instance;
    this.#on.onEnter();
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
    return {
      [Symbol.dispose]: () => {
        if (this.current === instance) this.current = null;
      },
    };
  }

  /** Waits for the instance that replaces one whose machine is gone; null when none does, or `signal` fires. */
  async after(instance: RunningInstance, signal: AbortSignal): Promise<RunningInstance | null> {
    // A machine is replaced only when the command had not begun.
    if (instance.hasBegun || signal.aborted) return null;
    if (this.latest === instance && !this.#isOver) {
      // The rejection only says that `signal` fired.
      await untilAborted(this.#changed.promise, signal).catch(() => undefined);
    }
    return this.latest === instance || signal.aborted ? null : this.latest;
  }

  [Symbol.dispose](): void {
    this.#isOver = true;
    this.#changed.resolve();
    this.#on.onOver();
  }
}
