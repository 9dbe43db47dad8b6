import type { Log } from "../log.ts";
import { retryPauseMs, withinTime } from "../system/waiting.ts";
import { Agent, AgentProtocolError } from "./agent/agent.ts";
import { SYNC_ENTROPY_BYTES } from "./agent/protocol.ts";
import { MachineEndedError, VmmError, withExitReason } from "./machine-end.ts";
import { TEMPLATES_BYTES_MAX } from "./machine-memory.ts";
import type { Machine, MachineShape, Template, Vmm } from "./vmm.ts";

/** From start to greeting. It takes half a second with KVM, two under emulation, and much longer on a busy host. */
export const HELLO_TIMEOUT_MS = 60_000;
/** A clone normally answers within tenths of a second. */
const SYNC_TIMEOUT_MS = 20_000;
/** A template's time of day, entropy and files grow old. */
const TEMPLATE_AGE_MS_MAX = 86_400_000;
/** Pause before a failed renewal is retried; it doubles with each further failure, up to the maximum. */
const RENEW_RETRY_MS_MIN = 60_000;
const RENEW_RETRY_MS_MAX = 3_600_000;
/** Longest pause before a failed first build is retried; the first retry is immediate. */
const BUILD_PAUSE_MS_MAX = 30_000;
const TEMPLATES_COUNT_MAX = 8;
/** Smallest shape: room for the kernel, the agent and the memory that the agent reserves. */
const MEMORY_BYTES_MIN = 134_217_728;
const STUCK_POLL_MS = 250;
/** An agent that is gone may be the first sign of a machine that is ending; this is the longest wait for its exit. */
const EXIT_WAIT_MS = 500;
/** Part of a console that an error shows, in `bytes`. */
const CONSOLE_BYTES_MAX = 2048;

/** The agent did not greet or answer in time, or its machine is known to be stuck. */
export class MachineUnresponsiveError extends VmmError {
  override readonly name = "MachineUnresponsiveError";
}

/** There is no template and none can be built now: the caller boots from cold. */
export class NoTemplateError extends Error {
  override readonly name = "NoTemplateError";
}

/** Rounds memory up to a power of two, so that one template serves many requests. */
export function templateShape({ vcpus, memoryBytes }: MachineShape): MachineShape {
  return { vcpus, memoryBytes: 2 ** Math.ceil(Math.log2(Math.max(memoryBytes, MEMORY_BYTES_MIN))) };
}

/** Opens the agent of a machine. */
export function openAgent(machine: Machine, log: Log): Agent {
  return Agent.open(machine.channel, { log: (text) => log.info("guest", { machine: machine.id, text }) });
}

/**
 * Waits for the greeting of a booting machine.
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
  // A machine that does not answer this question is about to end; its exit gives the reason.
  const reason = await machine.stuck().catch(() => null);
  if (reason !== null) stuck.abort(new MachineUnresponsiveError(reason));
}

async function notGreeted(machine: Machine, cause: unknown): Promise<Error> {
  if (cause instanceof AgentProtocolError) {
    return new MachineUnresponsiveError(`the guest's greeting is invalid: ${cause.message}`, { cause });
  }
  const ended = await withinTime(machine.exited, EXIT_WAIT_MS, () => null);
  const console = ended === null ? await machine.console() : "";
  const seen = console === "" ? "its console is empty" : `its console ends: ${console.slice(-CONSOLE_BYTES_MAX)}`;
  const end = ended === null ? cause : new MachineEndedError(ended.detail, ended, { cause });
  return new MachineUnresponsiveError(`the guest did not greet: ${ended?.detail ?? seen}`, { cause: end });
}

/** Gives a guest the time and entropy of its own. @throws MachineUnresponsiveError when it does not answer in time */
export async function syncAgent(agent: Agent): Promise<void> {
  const realtimeNs = BigInt(Date.now()) * 1_000_000n;
  const entropy = crypto.getRandomValues(new Uint8Array(SYNC_ENTROPY_BYTES));
  await withinTime(agent.sync({ realtimeNs, entropy }), SYNC_TIMEOUT_MS, () => {
    throw new MachineUnresponsiveError("the guest did not answer in time");
  });
}

/** Boots a machine, syncs it so that the guest loads its late modules, and saves it while it is idle. */
export async function buildTemplate(
  vmm: Vmm,
  shape: MachineShape,
  options: { log: Log; signal: AbortSignal; helloTimeoutMs?: number },
): Promise<Template> {
  await using machine = await vmm.bootForTemplate(shape);
  const agent = openAgent(machine, options.log);
  await awaitHello(machine, agent, options.signal, options.helloTimeoutMs);
  await withExitReason(machine, () => syncAgent(agent), options.signal);
  return await vmm.save(machine);
}

interface Entry {
  readonly key: string;
  readonly shape: MachineShape;
  readonly template: Promise<Template>;
  /** null while the template is being built */
  built: Template | null;
  renewing: boolean;
  /** failed attempts to renew it */
  failuresCount: number;
  /** earliest time of the next attempt, in `milliseconds` since the epoch */
  retryAtMs: number;
}

export interface TemplateStoreOptions {
  readonly vmm: Vmm;
  readonly log: Log;
  /** an existing template, such as the probe's; the store takes ownership of it */
  readonly first?: Template;
  /**
   * Limit for all templates together, in `bytes`. Dropped templates count until their last clone has ended. The newest
   * template may exceed the limit.
   */
  readonly memoryBytesMax?: number;
  /** longest time from a machine's start to its greeting, in `milliseconds` */
  readonly helloTimeoutMs?: number;
  /** the current time, in `milliseconds` since the epoch */
  readonly clock?: () => number;
}

/**
 * Templates by shape. A template is built when it is first needed, one at a time, and renewed daily and after an update
 * of the VMM. The least recently used ones are dropped when there are too many or when they take too much memory.
 */
export class TemplateStore implements AsyncDisposable {
  readonly #vmm: Vmm;
  readonly #log: Log;
  readonly #clock: () => number;
  readonly #helloTimeoutMs: number;
  readonly #memoryBytesMax: number;
  /** In the order of use, most recent last. */
  readonly #entries = new Map<string, Entry>();
  /** Failed builds by the key of their shape; `retryAtMs` is on the monotonic clock. */
  readonly #failed = new Map<string, { readonly count: number; readonly retryAtMs: number; readonly error: unknown }>();
  readonly #closing = new AbortController();
  readonly #background = new Set<Promise<void>>();
  /** Dropped templates whose memory clones still use. */
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

  /** Host memory of all templates, in `bytes`, without the one that is being built. */
  get memoryBytes(): number {
    for (const template of this.#retired) if (!template.isInUse) this.#retired.delete(template);
    const exempt = [...this.#entries.values()].flatMap(({ built }) => built ?? []);
    return [...exempt, ...this.#retired].reduce((sum, { memoryBytes }) => sum + memoryBytes, 0);
  }

  /**
   * A template of exactly this shape. The store may dispose of it at any later turn of the event loop: clone it at once.
   * @throws NoTemplateError when one would have to be built, but another is being built or there is no room for it;
   *   the error of the build, also to every call during the pause after it
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

  /** True when there is a finished template of this shape. */
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
      // The caller of `get` gets the error; the first call after the pause tries again.
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
   * Clones use the old template until the new one is ready. An updated VMM may be unable to boot a template; then each
   * attempt costs one machine, which is why the pauses between attempts grow.
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
   * Drops unused templates until at most `countMax` are left and the rest fits the limit, but neither the most recently
   * used one nor `exempt`, which a caller waits for.
   */
  #evict(countMax: number, exempt: Entry | null = null): void {
    for (const entry of [...this.#entries.values()].slice(0, -1)) {
      if (this.#entries.size <= countMax && this.memoryBytes <= this.#memoryBytesMax) return;
      if (entry === exempt || entry.built === null || entry.built.isInUse || entry.renewing) continue;
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
        // A failed build leaves nothing to dispose of, and its caller has the error.
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
