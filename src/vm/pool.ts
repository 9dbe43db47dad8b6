import type { CgroupStats } from "../cgroup/stats.ts";
import type { Isolation } from "../domain/operation.ts";
import type { Log } from "../log.ts";
import { retryPauseMs, sleepUnlessAborted, untilAborted } from "../system/waiting.ts";
import type { Agent } from "./agent/agent.ts";
import { CpuWeight } from "./cpu-weight.ts";
import { VmmError, withExitReason } from "./machine-end.ts";
import { awaitHello, NoTemplateError, openAgent, syncAgent, type TemplateStore, templateShape } from "./templates.ts";
import type { Disk, ForkPoint, Machine, MachineShape, Vmm } from "./vmm.ts";

/** A machine that has not run yet. Disposal ends it. */
export type PausedMachine = Omit<PooledMachine, "agent">;

/** A machine whose agent answers and whose guest has fresh entropy and the right time. Disposal ends it. */
export interface PooledMachine extends AsyncDisposable {
  readonly machine: Machine;
  readonly agent: Agent;
  readonly isolation: Isolation;
}

export interface PoolOptions {
  readonly vmm: Vmm;
  readonly templates: TemplateStore;
  /** the shape of the waiting clones */
  readonly shape: MachineShape;
  /** number of waiting clones */
  readonly size: number;
  readonly log: Log;
  /** boots every machine from cold, for hosts on which cloning does not work */
  readonly coldBootOnly?: boolean;
  /**
   * Runs the next user's first steps in a waiting clone, and undoes them. Omitted where a second run is not faster than
   * the first. A clone whose rehearsal fails is ended.
   */
  readonly rehearse?: (waiting: WaitingMachine) => Promise<void>;
  /** while it returns true, only half as many clones wait */
  readonly isShortOfMemory?: () => boolean;
  /** interval between calls of `isShortOfMemory`, in `milliseconds` */
  readonly memoryIntervalMs?: number;
  /** longest time from a machine's start to its greeting, in `milliseconds` */
  readonly helloTimeoutMs?: number;
}

/** Delay before a clone is replaced: the machine that was just taken gets the processors first. */
const REFILL_DELAY_MS = 100;
/** Longest pause before another clone is made after several failures; the first retry is immediate. */
const REFILL_PAUSE_MS_MAX = 30_000;
/** A failure this long ago no longer counts. */
const FAILURES_FORGOTTEN_MS = 60_000;

/** Clones rehearse only when none was taken for this long; until then, missing clones are made first. */
const REHEARSAL_DELAY_MS = 300;
/** Default interval for checking whether the host is short of memory. */
const MEMORY_INTERVAL_MS = 5000;

/** A clone that is ready and waits for a caller. */
export interface WaitingMachine {
  readonly machine: Machine;
  readonly agent: Agent;
}

interface WaitingClone extends WaitingMachine {
  rehearsed: boolean;
  ended: boolean;
}

/** Hands out machines: a waiting clone if there is one, else a new clone, else a machine booted from cold. */
export class Pool implements AsyncDisposable {
  readonly #options: PoolOptions;
  readonly #shape: MachineShape;
  readonly #isolation: Isolation;
  readonly #waiting: WaitingClone[] = [];
  readonly #closing = new AbortController();
  readonly #disposals = new Set<Promise<void>>();
  readonly #timer: NodeJS.Timeout;
  #refill: Promise<void> | null = null;
  #takenAt = Number.NEGATIVE_INFINITY;
  /** Consecutive failures of making clones, of rehearsals and of waiting clones. Taking a clone resets it. */
  #failuresCount = 0;
  #failedAt = Number.NEGATIVE_INFINITY;

  constructor(options: PoolOptions) {
    this.#options = options;
    this.#shape = templateShape(options.shape);
    this.#isolation = options.vmm.acceleration === "kvm" ? "vm" : "vm-emulated";
    this.#timer = setInterval(() => this.#adaptToMemory(), options.memoryIntervalMs ?? MEMORY_INTERVAL_MS);
    this.#timer.unref();
  }

  /** Number of waiting clones. */
  get waitingCount(): number {
    return this.#waiting.length;
  }

  /** Number of waiting clones that no longer need a rehearsal. */
  get readyCount(): number {
    const { rehearse } = this.#options;
    return rehearse === undefined ? this.#waiting.length : this.#waiting.filter(({ rehearsed }) => rehearsed).length;
  }

  /** Resource usage of the waiting clones so far, by machine id. */
  async usage(): Promise<Map<string, CgroupStats>> {
    const used = this.#waiting.map(async ({ machine }) => [machine.id, await machine.cgroup.stats()] as const);
    return new Map(await Promise.all(used));
  }

  /** False while there is no template for the pool's shape although the pool needs one. */
  get hasTemplate(): boolean {
    const { templates, size, coldBootOnly } = this.#options;
    return size === 0 || coldBootOnly === true || templates.has(this.#shape);
  }

  /** Begins to fill the pool. */
  start(): void {
    this.#fill(0);
  }

  /** Resolves when the pool is not making clones. */
  async idle(): Promise<void> {
    while (this.#refill !== null) await this.#refill;
  }

  /**
   * A machine of at least `shape`. The caller owns it.
   * @throws the reason of `signal`; the last error when no machine can be started
   */
  async take(shape: MachineShape, signal: AbortSignal): Promise<PooledMachine> {
    this.#closing.signal.throwIfAborted();
    signal.throwIfAborted();
    const rounded = templateShape(shape);
    if (rounded.memoryBytes === this.#shape.memoryBytes && rounded.vcpus === this.#shape.vcpus) {
      const waiting = await this.#takeWaiting(signal);
      if (waiting !== null) return waiting;
    }
    return await this.#takeNew(rounded, signal);
  }

  /**
   * A machine of at least `shape` that is not a waiting clone: background work leaves those to the instances.
   * @throws as `take`
   */
  async takeUnpooled(shape: MachineShape, signal: AbortSignal): Promise<PooledMachine> {
    this.#closing.signal.throwIfAborted();
    signal.throwIfAborted();
    return await this.#takeNew(templateShape(shape), signal);
  }

  /**
   * A copy of a forked machine, which runs no instruction before `Machine.resume`. The caller owns it.
   * @param disks as in `Vmm.cloneFork`
   * @throws VmmError when the copy cannot be made, or the VMM cannot fork; the reason of `signal`
   */
  async cloneFork(point: ForkPoint, disks: readonly Disk[], signal: AbortSignal): Promise<PausedMachine> {
    this.#closing.signal.throwIfAborted();
    signal.throwIfAborted();
    const { vmm } = this.#options;
    if (vmm.cloneFork === undefined) throw new VmmError(`${vmm.name} cannot copy machines with their memory`);
    await using stack = new AsyncDisposableStack();
    const machine = stack.use(await vmm.cloneFork(point, disks));
    this.#closing.signal.throwIfAborted();
    signal.throwIfAborted();
    stack.move();
    return { machine, isolation: this.#isolation, [Symbol.asyncDispose]: () => machine[Symbol.asyncDispose]() };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort(new Error("the pool is closed"));
    clearInterval(this.#timer);
    await this.#refill;
    for (const waiting of this.#waiting.splice(0)) this.#discard(waiting);
    while (this.#disposals.size > 0) await Promise.all(this.#disposals);
  }

  async #takeWaiting(signal: AbortSignal): Promise<PooledMachine | null> {
    for (let waiting = this.#next(); waiting !== undefined; waiting = this.#next()) {
      this.#takenAt = performance.now();
      this.#fill(REFILL_DELAY_MS);
      try {
        const ready = await this.#makeReady(waiting.machine, waiting.agent, signal);
        this.#failuresCount = 0;
        return ready;
      } catch (error) {
        signal.throwIfAborted();
        this.#options.log.warn("a waiting machine was lost", { machine: waiting.machine.id, error });
      }
    }
    return null;
  }

  async #takeNew(shape: MachineShape, signal: AbortSignal): Promise<PooledMachine> {
    if (!this.#options.coldBootOnly) {
      try {
        return await this.#takeClone(shape, signal);
      } catch (error) {
        signal.throwIfAborted();
        const { log } = this.#options;
        if (error instanceof NoTemplateError) log.info("booting a machine from cold", { reason: error.message });
        else log.warn("no machine could be cloned; booting one from cold", { error });
      }
    }
    return await this.#takeBooted(shape, signal);
  }

  async #takeClone(shape: MachineShape, signal: AbortSignal): Promise<PooledMachine> {
    const machine = await this.#clone(shape, signal);
    const ready = await this.#makeReady(machine, openAgent(machine, this.#options.log), signal);
    this.#failuresCount = 0;
    return ready;
  }

  async #takeBooted(shape: MachineShape, signal: AbortSignal): Promise<PooledMachine> {
    await using stack = new AsyncDisposableStack();
    const machine = stack.use(await this.#options.vmm.boot(shape));
    const agent = openAgent(machine, this.#options.log);
    await awaitHello(machine, agent, signal, this.#options.helloTimeoutMs);
    stack.move();
    return await this.#makeReady(machine, agent, signal);
  }

  /** Removes a waiting clone from the list, preferably one that has rehearsed. */
  #next(): WaitingClone | undefined {
    const index = this.#waiting.findIndex(({ rehearsed }) => rehearsed);
    return this.#waiting.splice(Math.max(0, index), 1)[0];
  }

  /** A template that is being built is finished even when `signal` aborts: the next request will need it too. */
  async #clone(shape: MachineShape, signal: AbortSignal, cpuWeight: number = CpuWeight.inUse): Promise<Machine> {
    const template = await untilAborted(this.#options.templates.get(shape), signal);
    return await this.#options.vmm.clone(template, cpuWeight);
  }

  /** Syncs the guest as late as possible, so that its clock is right. Ends the machine when that fails. */
  async #makeReady(machine: Machine, agent: Agent, signal: AbortSignal): Promise<PooledMachine> {
    await using stack = new AsyncDisposableStack();
    stack.use(machine);
    machine.cgroup.setCpuWeight(CpuWeight.inUse);
    await withExitReason(machine, () => untilAborted(syncAgent(agent), signal), signal);
    stack.move();
    return {
      machine,
      agent,
      isolation: this.#isolation,
      [Symbol.asyncDispose]: () => machine[Symbol.asyncDispose](),
    };
  }

  #fill(delayMs: number): void {
    if (this.#refill !== null || this.#options.coldBootOnly || this.#closing.signal.aborted) return;
    this.#refill = this.#refillAfter(delayMs).finally(() => {
      this.#refill = null;
    });
  }

  /** Ends clones when the host is short of memory, and makes them again when it no longer is. */
  #adaptToMemory(): void {
    if (this.#closing.signal.aborted) return;
    while (this.#waiting.length > this.#targetCount) {
      const [surplus] = this.#waiting.splice(-1);
      if (surplus !== undefined) this.#discard(surplus);
    }
    if (this.#waiting.length < this.#targetCount) this.#fill(0);
  }

  get #targetCount(): number {
    const { size, isShortOfMemory } = this.#options;
    return isShortOfMemory?.() === true ? Math.floor(size / 2) : size;
  }

  async #refillAfter(delayMs: number): Promise<void> {
    await sleepUnlessAborted(delayMs, this.#closing.signal);
    while (!this.#closing.signal.aborted) {
      try {
        if (this.#waiting.length < this.#targetCount) await this.#add();
        else if (!(await this.#rehearseNext())) return;
      } catch (error) {
        if (this.#closing.signal.aborted) return;
        const pauseMs = this.#pauseAfterFailure();
        this.#options.log.warn("the pool was not refilled", { error, retry_ms: pauseMs });
        await sleepUnlessAborted(pauseMs, this.#closing.signal);
      }
    }
  }

  /** Counts a failure and returns the pause before the next clone, in `milliseconds`. */
  #pauseAfterFailure(): number {
    const now = performance.now();
    if (now - this.#failedAt > FAILURES_FORGOTTEN_MS) this.#failuresCount = 0;
    this.#failedAt = now;
    this.#failuresCount += 1;
    return retryPauseMs(this.#failuresCount, REFILL_PAUSE_MS_MAX);
  }

  async #add(): Promise<void> {
    const machine = await this.#clone(this.#shape, this.#closing.signal, CpuWeight.waiting);
    const waiting: WaitingClone = {
      machine,
      agent: openAgent(machine, this.#options.log),
      rehearsed: false,
      ended: false,
    };
    await this.#check(waiting);
    this.#waiting.push(waiting);
    void machine.exited.then((exit) => {
      waiting.ended = true;
      const index = this.#waiting.indexOf(waiting);
      if (index < 0) return;
      this.#waiting.splice(index, 1);
      this.#discard(waiting);
      const pauseMs = this.#pauseAfterFailure();
      const { reason, detail } = exit;
      this.#options.log.warn("a waiting machine ended", { machine: machine.id, reason, detail, retry_ms: pauseMs });
      this.#fill(Math.max(REFILL_DELAY_MS, pauseMs));
    });
  }

  /** Checks that a clone answers. Its next answer is also faster. */
  async #check({ machine, agent }: WaitingClone): Promise<void> {
    await using stack = new AsyncDisposableStack();
    stack.use(machine);
    machine.cgroup.setCpuWeight(CpuWeight.waiting);
    const { signal } = this.#closing;
    await withExitReason(machine, () => untilAborted(syncAgent(agent), signal), signal);
    stack.move();
  }

  /** Lets one clone rehearse, which no caller can take meanwhile. Returns false when no clone needs to. */
  async #rehearseNext(): Promise<boolean> {
    const { rehearse } = this.#options;
    const waiting = this.#waiting.find(({ rehearsed }) => !rehearsed);
    if (rehearse === undefined || waiting === undefined) return false;
    const quietMs = performance.now() - this.#takenAt;
    if (quietMs < REHEARSAL_DELAY_MS) {
      await sleepUnlessAborted(REHEARSAL_DELAY_MS - quietMs, this.#closing.signal);
      return true;
    }
    this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
    await using stack = new AsyncDisposableStack();
    stack.use(waiting.machine);
    await untilAborted(rehearse(waiting), this.#closing.signal);
    // While it was out of the list, the handler of its exit did not remove it.
    if (waiting.ended) throw new VmmError("a machine ended while it rehearsed");
    waiting.rehearsed = true;
    this.#waiting.push(waiting);
    stack.move();
    return true;
  }

  #discard({ machine }: WaitingClone): void {
    const disposal = this.#dispose(machine).finally(() => this.#disposals.delete(disposal));
    this.#disposals.add(disposal);
  }

  async #dispose(machine: Machine): Promise<void> {
    try {
      await machine[Symbol.asyncDispose]();
    } catch (error) {
      this.#options.log.error("a machine could not be removed", { machine: machine.id, error });
    }
  }
}
