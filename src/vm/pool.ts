import type { CgroupStats } from "../cgroup/stats.ts";
import type { Isolation } from "../domain/operation.ts";
import type { Log } from "../log.ts";
import { retryPauseMs, sleepUnlessAborted, untilAborted } from "../system/waiting.ts";
import type { Agent } from "./agent/agent.ts";
import { CpuWeight } from "./cpu-weight.ts";
import { tellingEnd, VmmError } from "./machine-end.ts";
import { awaitHello, NoTemplateError, openAgent, syncAgent, type TemplateStore, templateShape } from "./templates.ts";
import type { Machine, MachineShape, Vmm } from "./vmm.ts";

/** A machine whose agent answers, has fresh entropy and knows the time. Disposal ends it. */
export interface PooledMachine extends AsyncDisposable {
  readonly machine: Machine;
  readonly agent: Agent;
  readonly isolation: Isolation;
}

export interface PoolOptions {
  readonly vmm: Vmm;
  readonly templates: TemplateStore;
  /** the shape of which clones wait */
  readonly shape: MachineShape;
  /** clones that wait */
  readonly size: number;
  readonly log: Log;
  /** boots every machine from cold, as where cloning does not work */
  readonly coldBootOnly?: boolean;
  /**
   * Does with a clone that waits what its next user will do, and takes that back. Missing where nothing is quicker the
   * second time; a clone with which it fails is ended.
   */
  readonly rehearse?: (waiting: WaitingMachine) => Promise<void>;
  /** the host is short of memory: only half as many clones wait then */
  readonly isShortOfMemory?: () => boolean;
  /** how often that is looked at, in `milliseconds` */
  readonly memoryIntervalMs?: number;
  /** from a machine's start to its greeting, in `milliseconds` */
  readonly helloTimeoutMs?: number;
}

/** The machine that was just taken gets the processors first. */
const REFILL_DELAY_MS = 100;
/** A clone that failed is made again at once; the pauses after further failures grow up to this. */
const REFILL_PAUSE_MS_MAX = 30_000;
/** Without a failure for so long, those before do not count. */
const FAILURES_FORGOTTEN_MS = 60_000;

/** While clones are being taken, those that come after are made first. */
const REHEARSAL_DELAY_MS = 300;
/** How often the pool looks whether the host is short of memory. */
const MEMORY_INTERVAL_MS = 5000;

/** A machine that nobody uses yet. */
export interface WaitingMachine {
  readonly machine: Machine;
  readonly agent: Agent;
}

interface Waiting extends WaitingMachine {
  rehearsed: boolean;
  ended: boolean;
}

/** Gives out machines: a clone that waits, else a fresh clone, else one booted from cold. */
export class Pool implements AsyncDisposable {
  readonly #options: PoolOptions;
  readonly #shape: MachineShape;
  readonly #isolation: Isolation;
  readonly #waiting: Waiting[] = [];
  readonly #closing = new AbortController();
  readonly #disposals = new Set<Promise<void>>();
  readonly #timer: NodeJS.Timeout;
  #refill: Promise<void> | null = null;
  #takenAt = Number.NEGATIVE_INFINITY;
  /** Clones in a row that failed to be made, to rehearse or to wait: one that is taken ends the row. */
  #failuresCount = 0;
  #failedAt = Number.NEGATIVE_INFINITY;

  constructor(options: PoolOptions) {
    this.#options = options;
    this.#shape = templateShape(options.shape);
    this.#isolation = options.vmm.acceleration === "kvm" ? "vm" : "vm-emulated";
    this.#timer = setInterval(() => this.#adapt(), options.memoryIntervalMs ?? MEMORY_INTERVAL_MS);
    this.#timer.unref();
  }

  /** Clones that wait now. */
  get waitingCount(): number {
    return this.#waiting.length;
  }

  /** Those of them that cannot become any quicker. */
  get readyCount(): number {
    const { rehearse } = this.#options;
    return rehearse === undefined ? this.#waiting.length : this.#waiting.filter(({ rehearsed }) => rehearsed).length;
  }

  /** What those that wait have used so far, by machine. */
  async usage(): Promise<Map<string, CgroupStats>> {
    const used = this.#waiting.map(async ({ machine }) => [machine.id, await machine.cgroup.stats()] as const);
    return new Map(await Promise.all(used));
  }

  /** False while machines of the pool's shape have nothing to be cloned from; one that is made on demand counts. */
  get hasTemplate(): boolean {
    const { templates, size, coldBootOnly } = this.#options;
    return size === 0 || coldBootOnly === true || templates.has(this.#shape);
  }

  /** Begins to fill the pool. */
  start(): void {
    this.#fill(0);
  }

  /** Resolves when nothing is being cloned for the pool. */
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
   * A machine of at least `shape`, but none of those that wait: they are for who is in a hurry.
   * @throws as `take`
   */
  async takeAside(shape: MachineShape, signal: AbortSignal): Promise<PooledMachine> {
    this.#closing.signal.throwIfAborted();
    signal.throwIfAborted();
    return await this.#takeNew(templateShape(shape), signal);
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
        const taken = await this.#ready(waiting.machine, waiting.agent, signal);
        this.#failuresCount = 0;
        return taken;
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
    const taken = await this.#ready(machine, openAgent(machine, this.#options.log), signal);
    this.#failuresCount = 0;
    return taken;
  }

  async #takeBooted(shape: MachineShape, signal: AbortSignal): Promise<PooledMachine> {
    await using stack = new AsyncDisposableStack();
    const machine = stack.use(await this.#options.vmm.boot(shape));
    const agent = openAgent(machine, this.#options.log);
    await awaitHello(machine, agent, signal, this.#options.helloTimeoutMs);
    stack.move();
    return await this.#ready(machine, agent, signal);
  }

  /** One that has rehearsed, if there is one. */
  #next(): Waiting | undefined {
    const index = this.#waiting.findIndex(({ rehearsed }) => rehearsed);
    return this.#waiting.splice(Math.max(0, index), 1)[0];
  }

  /** Building a template outlives the request that asked for it: the next one will want it too. */
  async #clone(shape: MachineShape, signal: AbortSignal, cpuWeight: number = CpuWeight.inUse): Promise<Machine> {
    const template = await untilAborted(this.#options.templates.get(shape), signal);
    return await this.#options.vmm.clone(template, cpuWeight);
  }

  /** Syncs at the last moment, so that the time is right. Ends the machine when that fails. */
  async #ready(machine: Machine, agent: Agent, signal: AbortSignal): Promise<PooledMachine> {
    await using stack = new AsyncDisposableStack();
    stack.use(machine);
    machine.cgroup.weigh(CpuWeight.inUse);
    await tellingEnd(machine, () => untilAborted(syncAgent(agent), signal), signal);
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

  /** Gives up clones that the host has no memory for, and makes those that it has room for again. */
  #adapt(): void {
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

  /** Before the next clone, in `milliseconds`. */
  #pauseAfterFailure(): number {
    const now = performance.now();
    if (now - this.#failedAt > FAILURES_FORGOTTEN_MS) this.#failuresCount = 0;
    this.#failedAt = now;
    this.#failuresCount += 1;
    return retryPauseMs(this.#failuresCount, REFILL_PAUSE_MS_MAX);
  }

  async #add(): Promise<void> {
    const machine = await this.#clone(this.#shape, this.#closing.signal, CpuWeight.waiting);
    const waiting: Waiting = { machine, agent: openAgent(machine, this.#options.log), rehearsed: false, ended: false };
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

  /** A clone that has answered once is alive, and answers quicker when it is taken. */
  async #check({ machine, agent }: Waiting): Promise<void> {
    await using stack = new AsyncDisposableStack();
    stack.use(machine);
    machine.cgroup.weigh(CpuWeight.waiting);
    const { signal } = this.#closing;
    await tellingEnd(machine, () => untilAborted(syncAgent(agent), signal), signal);
    stack.move();
  }

  /** Lets one clone rehearse, which cannot be taken meanwhile; false when there is none that has to. */
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
    // It was in nobody's view meanwhile.
    if (waiting.ended) throw new VmmError("a machine ended while it rehearsed");
    waiting.rehearsed = true;
    this.#waiting.push(waiting);
    stack.move();
    return true;
  }

  #discard({ machine }: Waiting): void {
    const disposal = this.#dispose(machine).finally(() => this.#disposals.delete(disposal));
    this.#disposals.add(disposal);
  }

  async #dispose(machine: Machine): Promise<void> {
    try {
      await machine[Symbol.asyncDispose]();
    } catch (error) {
      this.#options.log.error("a machine was not removed", { machine: machine.id, error });
    }
  }
}
