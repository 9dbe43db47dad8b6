import { Accounts } from "../../domain/account/accounts.ts";
import { machineMemoryBytes } from "../../vm/machine-memory.ts";
import { templateShape } from "../../vm/templates.ts";
import type { MachineShape } from "../../vm/vmm.ts";

/** The share of the host's budget that a piece of work holds while it runs. */
export interface Cost {
  readonly memoryBytes: number;
  /** the machine of a sandbox holds a fraction of its own */
  readonly vcpus: number;
}

/** The cost of a machine of this shape: the limits of its control group. */
export function costOf(shape: MachineShape): Cost {
  const rounded = templateShape(shape);
  return { vcpus: rounded.vcpus, memoryBytes: machineMemoryBytes(rounded) };
}

/**
 * The part of its vCPUs that the machine of a sandbox counts with: it waits for commands most of the time, and the control
 * groups divide the processors fairly when many work at once. Sums of multiples of a negative power of two are exact.
 */
const SANDBOX_VCPUS_PART = 1 / 8;

/** The cost of a sandbox's machine of this shape once it runs; its start costs as much as that of any other machine. */
export function sandboxCostOf(shape: MachineShape): Cost {
  const { vcpus, memoryBytes } = costOf(shape);
  return { vcpus: vcpus * SANDBOX_VCPUS_PART, memoryBytes };
}

/** Holds a share of the budget until it is disposed. */
export interface Ticket extends Disposable {
  readonly cost: Cost;
  /** Gives back what exceeds `cost`. */
  reduce(cost: Cost): void;
}

/** Permission to run while no other work needs the host. */
export interface IdleTicket extends Disposable {
  /** fires when other work needs the budget: the holder must stop and dispose of the ticket */
  readonly yield: AbortSignal;
}

interface IdleWork {
  readonly cost: Cost;
  readonly admit: () => void;
  readonly yield: AbortController;
}

/**
 * How long smaller work may pass a large piece of work that does not fit. Then the scheduler reserves the host for it:
 * nothing else is admitted until it fits, so that a stream of small work cannot starve a large one. The exception is one
 * piece of work for each other account that runs nothing.
 */
const RESERVATION_MS = 30_000;

const NOTHING: Cost = { memoryBytes: 0, vcpus: 0 };
const YIELDED = new Error("other work needs the budget");

interface Waiting {
  readonly accountId: string;
  readonly cost: Cost;
  readonly enqueuedAtMs: number;
  readonly admit: () => void;
}

/**
 * Admits work within a budget of memory and CPUs: first come, first served within an account; between accounts, the one
 * with the least running work first, then the one that was served longest ago.
 */
export class Scheduler {
  readonly #budget: Cost;
  /** counts what the running work of each account holds of the budget */
  readonly #accounts: Accounts;
  readonly #clock: () => number;
  readonly #waiting: Waiting[] = [];
  /** Turn at which an account with waiting or running work was last served. */
  readonly #servedAt = new Map<string, number>();
  /** Background work, which runs only while the budget has room for it and no other work waits. */
  readonly #idleWaiting = new Set<IdleWork>();
  readonly #idleRunning = new Set<IdleWork>();
  /** The work that the host is reserved for, and the accounts that have had work admitted since. */
  #reservation: { readonly entry: Waiting; readonly passed: Set<string> } | null = null;
  #turn = 0;
  #usedMemoryBytes = 0;
  #usedVcpus = 0;
  #runningCount = 0;

  constructor(budget: Cost, clock: () => number, accounts = new Accounts()) {
    this.#accounts = accounts;
    this.#budget = budget;
    this.#clock = clock;
  }

  /** True when `cost` could ever be admitted. */
  fitsEver(cost: Cost): boolean {
    return cost.memoryBytes <= this.#budget.memoryBytes && cost.vcpus <= this.#budget.vcpus;
  }

  /** Number of pieces of work of an account that wait. */
  waitingCount(accountId: string): number {
    return this.#waiting.reduce((count, entry) => count + (entry.accountId === accountId ? 1 : 0), 0);
  }

  get budget(): Cost {
    return this.#budget;
  }

  /** The share of the budget that running work holds; background work is not counted. */
  get used(): Cost {
    return { memoryBytes: this.#usedMemoryBytes, vcpus: this.#usedVcpus };
  }

  /** The share of the budget that an account's running work holds. */
  heldBy(accountId: string): Cost {
    const used = (name: "memory" | "vcpus") => this.#accounts.used(accountId, name);
    return { memoryBytes: used("memory"), vcpus: used("vcpus") };
  }

  get runningCount(): number {
    return this.#runningCount;
  }

  /**
   * Waits for a share of the budget. When `signal` fires, the work leaves the queue at once.
   * @throws the reason of `signal`
   */
  admit(accountId: string, cost: Cost, signal: AbortSignal): Promise<Ticket> {
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<Ticket>();
    const onAbort = () => {
      this.#waiting.splice(this.#waiting.indexOf(entry), 1);
      reject(signal.reason);
      this.#dispatch();
    };
    const entry: Waiting = {
      accountId,
      cost,
      enqueuedAtMs: this.#clock(),
      admit: () => {
        signal.removeEventListener("abort", onAbort);
        resolve(this.#take(accountId, cost));
      },
    };
    signal.addEventListener("abort", onAbort, { once: true });
    this.#waiting.push(entry);
    this.#dispatch();
    return promise;
  }

  /** Takes a share for work that runs already, even over the budget. */
  take(accountId: string, cost: Cost): Ticket {
    return this.#take(accountId, cost);
  }

  /** Takes memory that no account has, even over the budget. */
  takeShared(memoryBytes: number): Disposable {
    const held = this.#count({ memoryBytes, vcpus: 0 });
    return {
      [Symbol.dispose]: () => {
        held.dispose();
        this.#dispatch();
      },
    };
  }

  /** Takes a share for each cost, as `admit` would without any wait; null: at least one would have to wait. */
  admitNow(accountId: string, costs: readonly Cost[]): Ticket[] | null {
    let tickets: Ticket[] | null = null;
    const entry: Waiting = {
      accountId,
      cost: costs.reduce(
        (sum, { memoryBytes, vcpus }) => ({
          memoryBytes: sum.memoryBytes + memoryBytes,
          vcpus: sum.vcpus + vcpus,
        }),
        NOTHING,
      ),
      enqueuedAtMs: this.#clock(),
      admit: () => {
        tickets = costs.map((cost) => this.#take(accountId, cost));
      },
    };
    this.#waiting.push(entry);
    this.#dispatch();
    if (tickets !== null) return tickets;
    this.#waiting.splice(this.#waiting.indexOf(entry), 1);
    this.#dispatch();
    return null;
  }

  /**
   * Waits until the budget has room that no other work needs. Work that is admitted here does not count against the
   * budget of other work: when that needs the room, `yield` fires and this work must end.
   * @throws the reason of `signal`
   */
  admitIdle(cost: Cost, signal: AbortSignal): Promise<IdleTicket> {
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<IdleTicket>();
    const onAbort = () => {
      this.#idleWaiting.delete(work);
      reject(signal.reason);
    };
    const work: IdleWork = {
      cost,
      yield: new AbortController(),
      admit: () => {
        signal.removeEventListener("abort", onAbort);
        resolve({ yield: work.yield.signal, [Symbol.dispose]: () => this.#endIdle(work) });
      },
    };
    signal.addEventListener("abort", onAbort, { once: true });
    this.#idleWaiting.add(work);
    this.#dispatch();
    return promise;
  }

  #endIdle(work: IdleWork): void {
    if (this.#idleRunning.delete(work)) this.#dispatch();
  }

  #dispatch(): void {
    for (let entry = this.#nextEntry(); entry !== null; entry = this.#nextEntry()) {
      this.#waiting.splice(this.#waiting.indexOf(entry), 1);
      entry.admit();
    }
    if (!this.#hasRoomForIdle(NOTHING)) for (const work of this.#idleRunning) work.yield.abort(YIELDED);
    for (const work of this.#idleWaiting) {
      if (!this.#hasRoomForIdle(work.cost)) continue;
      this.#idleWaiting.delete(work);
      this.#idleRunning.add(work);
      work.admit();
    }
  }

  /** True when no other work waits, and `cost` fits the budget together with all running work. */
  #hasRoomForIdle({ memoryBytes, vcpus }: Cost): boolean {
    const costs = [...this.#idleRunning].map(({ cost }) => cost);
    const idleMemoryBytes = costs.reduce((sum, cost) => sum + cost.memoryBytes, memoryBytes);
    const idleVcpus = costs.reduce((sum, cost) => sum + cost.vcpus, vcpus);
    return this.#waiting.length === 0 && this.#fits({ memoryBytes: idleMemoryBytes, vcpus: idleVcpus });
  }

  /** The entry to admit now, or null when none fits or a reservation stands. */
  #nextEntry(): Waiting | null {
    const heads = new Map<string, Waiting>();
    for (const entry of this.#waiting) {
      if (!heads.has(entry.accountId)) heads.set(entry.accountId, entry);
    }
    const order = [...heads.values()].sort(
      (a, b) =>
        this.#runningOf(a.accountId) - this.#runningOf(b.accountId) ||
        (this.#servedAt.get(a.accountId) ?? 0) - (this.#servedAt.get(b.accountId) ?? 0) ||
        a.enqueuedAtMs - b.enqueuedAtMs,
    );
    const nowMs = this.#clock();
    const overdue = order.find((entry) => nowMs - entry.enqueuedAtMs >= RESERVATION_MS && !this.#fits(entry.cost));
    if (overdue !== undefined && this.fitsEver(overdue.cost)) return this.#nextPast(overdue, order);
    return order.find((entry) => this.#fits(entry.cost)) ?? null;
  }

  /** The entry that may pass `reserved`, for which the host is reserved; null when there is none. */
  #nextPast(reserved: Waiting, order: readonly Waiting[]): Waiting | null {
    if (this.#reservation?.entry !== reserved) this.#reservation = { entry: reserved, passed: new Set() };
    const { passed } = this.#reservation;
    const mayPass = ({ accountId, cost }: Waiting): boolean =>
      accountId !== reserved.accountId &&
      this.#runningOf(accountId) === 0 &&
      !passed.has(accountId) &&
      this.#fits(cost);
    const next = order.find(mayPass) ?? null;
    if (next !== null) passed.add(next.accountId);
    return next;
  }

  #fits(cost: Cost): boolean {
    return (
      this.#usedMemoryBytes + cost.memoryBytes <= this.#budget.memoryBytes &&
      this.#usedVcpus + cost.vcpus <= this.#budget.vcpus
    );
  }

  #take(accountId: string, cost: Cost): Ticket {
    let held = this.#hold(accountId, cost);
    this.#servedAt.set(accountId, ++this.#turn);
    return {
      cost,
      reduce: (less) => {
        if (held.disposed) return;
        const before = held;
        held = this.#hold(accountId, less);
        before.dispose();
        this.#dispatch();
      },
      [Symbol.dispose]: () => {
        if (held.disposed) return;
        held.dispose();
        if (this.#runningOf(accountId) === 0 && this.waitingCount(accountId) === 0) this.#servedAt.delete(accountId);
        this.#dispatch();
      },
    };
  }

  #runningOf(accountId: string): number {
    return this.#accounts.used(accountId, "running");
  }

  /** Counts a piece of work until disposal. */
  #hold(accountId: string, { memoryBytes, vcpus }: Cost): DisposableStack {
    const held = this.#count({ memoryBytes, vcpus });
    held.use(this.#accounts.add(accountId, { running: 1, memory: memoryBytes, vcpus }));
    this.#runningCount += 1;
    held.defer(() => {
      this.#runningCount -= 1;
    });
    return held;
  }

  #count({ memoryBytes, vcpus }: Cost): DisposableStack {
    const held = new DisposableStack();
    const count = (sign: 1 | -1): void => {
      this.#usedMemoryBytes += sign * memoryBytes;
      this.#usedVcpus += sign * vcpus;
    };
    count(1);
    held.defer(() => count(-1));
    return held;
  }
}
