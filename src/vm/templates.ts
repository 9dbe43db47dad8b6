import type { Log } from "../log.ts";
import { retryPauseMs, withinTime } from "../system/waiting.ts";
import { Agent, AgentProtocolError } from "./agent/agent.ts";
import { SYNC_ENTROPY_BYTES } from "./agent/protocol.ts";
import { MachineEndedError, tellingEnd, VmmError } from "./machine-end.ts";
import { TEMPLATES_BYTES_MAX } from "./machine-memory.ts";
import type { Machine, MachineShape, Template, Vmm } from "./vmm.ts";

/** From start to greeting: half a second with KVM, two under emulation, many on a host with more to do. */
export const HELLO_TIMEOUT_MS = 60_000;
/** A clone answers in tenths of a second. */
const SYNC_TIMEOUT_MS = 20_000;
/** What a template knows of its boot ages: its time of day, its entropy, the files it was made from. */
const TEMPLATE_AGE_MS_MAX = 86_400_000;
/** A template that cannot be renewed is tried again after this time, and after twice the time with each further failure. */
const RENEW_RETRY_MS_MIN = 60_000;
const RENEW_RETRY_MS_MAX = 3_600_000;
/** Of a shape that has none a template is built again at once; the pauses after further failures grow up to this. */
const BUILD_PAUSE_MS_MAX = 30_000;
const TEMPLATES_COUNT_MAX = 8;
/** Smallest shape: kernel, agent and the memory that the agent keeps for itself. */
const MEMORY_BYTES_MIN = 134_217_728;
const STUCK_POLL_MS = 250;
/** An agent that is gone may be the first sign of a machine that is ending. */
const EXIT_WAIT_MS = 500;
/** Of a console in an error, in `bytes`. */
const CONSOLE_BYTES_MAX = 2048;

/** The agent did not greet, did not answer in time, or its machine is known to get nowhere. */
export class MachineUnresponsiveError extends VmmError {
  override readonly name = "MachineUnresponsiveError";
}

/** There is no template now, and none is made: the machine is to be booted from cold. */
export class NoTemplateError extends Error {
  override readonly name = "NoTemplateError";
}

/** Rounds up to a shape of which there is one template for many requests: powers of two of memory. */
export function templateShape({ vcpus, memoryBytes }: MachineShape): MachineShape {
  return { vcpus, memoryBytes: 2 ** Math.ceil(Math.log2(Math.max(memoryBytes, MEMORY_BYTES_MIN))) };
}

/** Opens the agent of a machine. */
export function openAgent(machine: Machine, log: Log): Agent {
  return Agent.open(machine.channel, { log: (text) => log.info("guest", { machine: machine.id, text }) });
}

/**
 * Waits for the greeting of a machine that boots.
 * @throws MachineUnresponsiveError with the end of the console; the reason of `signal`
 */
export async function awaitHello(
  machine: Machine,
  agent: Agent,
  signal: AbortSignal,
  timeoutMs = HELLO_TIMEOUT_MS,
): Promise<void> {
  const stuck = new AbortController();
  const watch = setInterval(() => void watchStuck(machine, stuck), STUCK_POLL_MS);
  using _watch = { [Symbol.dispose]: () => clearInterval(watch) };
  try {
    await agent.hello(AbortSignal.any([signal, AbortSignal.timeout(timeoutMs), stuck.signal]));
  } catch (error) {
    signal.throwIfAborted();
    stuck.signal.throwIfAborted();
    throw await notGreeted(machine, error);
  }
}

async function watchStuck(machine: Machine, stuck: AbortController): Promise<void> {
  // A machine that cannot be asked is about to end, which its exit tells better.
  const reason = await machine.stuck().catch(() => null);
  if (reason !== null) stuck.abort(new MachineUnresponsiveError(reason));
}

async function notGreeted(machine: Machine, cause: unknown): Promise<Error> {
  if (cause instanceof AgentProtocolError) {
    return new MachineUnresponsiveError(`the guest's greeting is refused: ${cause.message}`, { cause });
  }
  const ended = await withinTime(machine.exited, EXIT_WAIT_MS, () => null);
  const console = ended === null ? await machine.console() : "";
  const seen = console === "" ? "its console is empty" : `its console ends: ${console.slice(-CONSOLE_BYTES_MAX)}`;
  const end = ended === null ? cause : new MachineEndedError(ended.detail, ended, { cause });
  return new MachineUnresponsiveError(`the guest did not greet: ${ended?.detail ?? seen}`, { cause: end });
}

/** Gives a guest the time and entropy of its own. @throws MachineUnresponsiveError */
export async function syncAgent(agent: Agent): Promise<void> {
  const realtimeNs = BigInt(Date.now()) * 1_000_000n;
  const entropy = crypto.getRandomValues(new Uint8Array(SYNC_ENTROPY_BYTES));
  await withinTime(agent.sync({ realtimeNs, entropy }), SYNC_TIMEOUT_MS, () => {
    throw new MachineUnresponsiveError("the guest did not answer in time");
  });
}

/** Boots a machine and saves it: what clones begin with is booted, has its modules loaded, and is idle. */
export async function buildTemplate(
  vmm: Vmm,
  shape: MachineShape,
  options: { log: Log; signal: AbortSignal; helloTimeoutMs?: number },
): Promise<Template> {
  await using machine = await vmm.bootForTemplate(shape);
  const agent = openAgent(machine, options.log);
  await awaitHello(machine, agent, options.signal, options.helloTimeoutMs);
  await tellingEnd(machine, () => syncAgent(agent), options.signal);
  return await vmm.save(machine);
}

interface Entry {
  readonly key: string;
  readonly shape: MachineShape;
  readonly template: Promise<Template>;
  /** null while the template is being built */
  built: Template | null;
  renewing: boolean;
  /** of attempts to renew it */
  failuresCount: number;
  /** before it there is no further attempt; `milliseconds` since the epoch */
  retryAtMs: number;
}

export interface TemplateStoreOptions {
  readonly vmm: Vmm;
  readonly log: Log;
  /** a template that exists already, of the probe for one; the store owns it then */
  readonly first?: Template;
  /**
   * Of templates together, in `bytes`, those that were dropped counted until their last clone has ended; the last one
   * that was made may exceed it.
   */
  readonly memoryBytesMax?: number;
  /** from a machine's start to its greeting, in `milliseconds` */
  readonly helloTimeoutMs?: number;
  /** `milliseconds` since the epoch */
  readonly clock?: () => number;
}

/**
 * Templates by shape: built when first needed, one at a time; renewed daily and after an update of the VMM; the least
 * recently used dropped beyond a few, and where they take too much memory.
 */
export class TemplateStore implements AsyncDisposable {
  readonly #vmm: Vmm;
  readonly #log: Log;
  readonly #clock: () => number;
  readonly #helloTimeoutMs: number;
  readonly #memoryBytesMax: number;
  /** In the order of use, the latest last. */
  readonly #entries = new Map<string, Entry>();
  /** Shapes of which none could be built, by their keys; `retryAtMs` on the clock that nobody sets. */
  readonly #failed = new Map<string, { readonly count: number; readonly retryAtMs: number; readonly error: unknown }>();
  readonly #closing = new AbortController();
  readonly #background = new Set<Promise<void>>();
  /** Dropped, but in the memory of clones. */
  readonly #retired = new Set<Template>();
  #isBuilding = false;

  constructor(options: TemplateStoreOptions) {
    this.#vmm = options.vmm;
    this.#log = options.log;
    this.#clock = options.clock ?? Date.now;
    this.#helloTimeoutMs = options.helloTimeoutMs ?? HELLO_TIMEOUT_MS;
    this.#memoryBytesMax = options.memoryBytesMax ?? TEMPLATES_BYTES_MAX;
    const first = options.first;
    if (first === undefined) return;
    const key = keyOf(first.shape);
    this.#entries.set(key, newEntry(key, first.shape, Promise.resolve(first), first));
  }

  /** What templates take of the host's memory now, in `bytes`, without one that is being built. */
  get memoryBytes(): number {
    for (const template of this.#retired) if (!template.isInUse) this.#retired.delete(template);
    const kept = [...this.#entries.values()].flatMap(({ built }) => built ?? []);
    return [...kept, ...this.#retired].reduce((sum, { memoryBytes }) => sum + memoryBytes, 0);
  }

  /**
   * A template of exactly this shape. It may be disposed any time after the next wait: clone it at once.
   * @throws NoTemplateError when one would have to be built, and another is being built or there is no room for it;
   * what made the building fail, at once during the pause after that
   */
  async get(shape: MachineShape): Promise<Template> {
    this.#closing.signal.throwIfAborted();
    const key = keyOf(shape);
    const failed = this.#failed.get(key);
    if (failed !== undefined && !this.#entries.has(key) && performance.now() < failed.retryAtMs) throw failed.error;
    const entry = this.#entries.get(key) ?? this.#buildIfRoom(key, shape);
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    if (entry.built !== null && this.#isOld(entry.built.createdAt)) this.#renew(entry);
    return await entry.template;
  }

  /** True when there is a template of this shape, built to its end. */
  has(shape: MachineShape): boolean {
    return (this.#entries.get(keyOf(shape))?.built ?? null) !== null;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort(new Error("templates are no longer needed"));
    for (const entry of this.#entries.values()) this.#drop(entry);
    this.#entries.clear();
    while (this.#background.size > 0) await Promise.all(this.#background);
  }

  #isOld(createdAt: number): boolean {
    return this.#clock() - createdAt > TEMPLATE_AGE_MS_MAX || this.#vmm.isOutdated === true;
  }

  #buildIfRoom(key: string, shape: MachineShape): Entry {
    if (this.#isBuilding) throw new NoTemplateError("another template is being built");
    this.#evict(TEMPLATES_COUNT_MAX - 1);
    if (this.#entries.size >= TEMPLATES_COUNT_MAX || this.memoryBytes > this.#memoryBytesMax) {
      throw new NoTemplateError("there is no room for another template until machines end");
    }
    return this.#build(key, shape);
  }

  #build(key: string, shape: MachineShape): Entry {
    this.#isBuilding = true;
    const startedAt = performance.now();
    const template = buildTemplate(this.#vmm, shape, {
      log: this.#log,
      signal: this.#closing.signal,
      helloTimeoutMs: this.#helloTimeoutMs,
    });
    const entry = newEntry(key, shape, template, null);
    template.then(
      (built) => {
        this.#isBuilding = false;
        entry.built = built;
        this.#failed.delete(key);
        this.#evict(TEMPLATES_COUNT_MAX, entry);
        const durationMs = Math.round(performance.now() - startedAt);
        this.#log.info("template built", {
          vcpus: shape.vcpus,
          memory_bytes: shape.memoryBytes,
          template_bytes: built.memoryBytes,
          duration_ms: durationMs,
        });
      },
      // The caller of `get` is told; the next one after the pause tries again.
      (error: unknown) => {
        this.#isBuilding = false;
        if (this.#entries.get(key) !== entry) return;
        this.#entries.delete(key);
        const count = (this.#failed.get(key)?.count ?? 0) + 1;
        const retryAtMs = performance.now() + retryPauseMs(count, BUILD_PAUSE_MS_MAX);
        this.#failed.set(key, { count, error, retryAtMs });
      },
    );
    return entry;
  }

  /**
   * Clones go on with the old one until the new one is there. Where none can be made, of a VMM that was updated and does
   * not boot for one, a machine is lost to that now and then, not with every clone.
   */
  #renew(old: Entry): void {
    if (old.renewing || this.#isBuilding || this.#clock() < old.retryAtMs) return;
    this.#evict(TEMPLATES_COUNT_MAX);
    if (this.memoryBytes > this.#memoryBytesMax) return;
    old.renewing = true;
    const renewed = this.#build(old.key, old.shape);
    this.#track(
      renewed.template.then(
        () => {
          const replaced = this.#entries.get(old.key) === old;
          if (replaced) this.#entries.set(old.key, renewed);
          this.#drop(replaced ? old : renewed);
        },
        (error) => {
          old.renewing = false;
          const retryMs = Math.min(RENEW_RETRY_MS_MAX, RENEW_RETRY_MS_MIN * 2 ** old.failuresCount++);
          old.retryAtMs = this.#clock() + retryMs;
          this.#log.warn("template not renewed", { error, retry_ms: retryMs });
        },
      ),
    );
  }

  /**
   * Drops templates that nobody uses until there are `countMax` and they have room, but never the one used last, nor
   * `kept`, which somebody waits for.
   */
  #evict(countMax: number, kept: Entry | null = null): void {
    for (const entry of [...this.#entries.values()].slice(0, -1)) {
      if (this.#entries.size <= countMax && this.memoryBytes <= this.#memoryBytesMax) return;
      if (entry === kept || entry.built === null || entry.built.isInUse || entry.renewing) continue;
      this.#entries.delete(entry.key);
      this.#drop(entry);
    }
  }

  #drop(entry: Entry): void {
    this.#track(
      entry.template.then(
        (template) => {
          this.#retired.add(template);
          return template[Symbol.asyncDispose]();
        },
        // A template that was not built leaves nothing to dispose; its error went to who asked for it.
        () => undefined,
      ),
    );
  }

  #track(work: Promise<void>): void {
    const tracked = work.finally(() => this.#background.delete(tracked));
    this.#background.add(tracked);
  }
}

function newEntry(key: string, shape: MachineShape, template: Promise<Template>, built: Template | null): Entry {
  return { key, shape, template, built, renewing: false, failuresCount: 0, retryAtMs: 0 };
}

function keyOf({ vcpus, memoryBytes }: MachineShape): string {
  return `${vcpus}/${memoryBytes}`;
}
