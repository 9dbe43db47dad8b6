import { machineMemoryBytes } from "../../vm/machine-memory.ts";
import { templateShape } from "../../vm/templates.ts";
import type { MachineShape } from "../../vm/vmm.ts";

/** What a piece of work holds of the host while it runs. */
export interface Cost {
  readonly memoryBytes: number;
  readonly vcpus: number;
}

/** What a machine takes of the host's budget that is given out for this shape: all that its control group allows it. */
export function costOf(shape: MachineShape): Cost {
  const rounded = templateShape(shape);
  return { vcpus: rounded.vcpus, memoryBytes: machineMemoryBytes(rounded) };
}

/** Holds a cost of the budget until it is disposed. */
export interface Ticket extends Disposable {
  readonly cost: Cost;
}

/** A place that is held only as long as nobody else needs it. */
export interface IdleTicket extends Disposable {
  /** fires when work that counts waits or would exceed the budget: what runs here must end, and its place be given back */
  readonly yield: AbortSignal;
}

interface IdlePlace {
  readonly cost: Cost;
  readonly admit: () => void;
  readonly yield: AbortController;
}

/**
 * How long a piece of work that does not fit waits while smaller ones pass it; after that the host is
 * left to drain until it fits, so that a stream of small work cannot starve a large one. Meanwhile every
 * other account that runs nothing may have one piece of work admitted: it does not wait for the draining.
 */
const RESERVATION_MS = 30_000;

const NOTHING: Cost = { memoryBytes: 0, vcpus: 0 };
const YIELDED = new Error("other work needs the place");

interface Waiting {
  readonly accountId: string;
  readonly cost: Cost;
  readonly enqueuedAtMs: number;
  readonly admit: (ticket: Ticket) => void;
}

/**
 * Admits work within a budget of memory and CPU: first come first served within an account, and
 * between accounts the one with the least running work first, then the one that was served longest ago.
 */
export class Scheduler {
  readonly #budget: Cost;
  readonly #clock: () => number;
  readonly #waiting: Waiting[] = [];
  readonly #running = new Map<string, number>();
  /** Turn at which an account with waiting or running work was last served. */
  readonly #servedAt = new Map<string, number>();
  /** Work that is done only when there is room: it waits, and it runs, without anybody waiting for it. */
  readonly #idleWaiting = new Set<IdlePlace>();
  readonly #idleRunning = new Set<IdlePlace>();
  /** The work that the host drains for, and the accounts that were let by since. */
  #reservation: { readonly entry: Waiting; readonly passed: Set<string> } | null = null;
  #turn = 0;
  #usedMemoryBytes = 0;
  #usedVcpus = 0;

  constructor(budget: Cost, clock: () => number) {
    this.#budget = budget;
    this.#clock = clock;
  }

  /** True when `cost` could ever be admitted. */
  fitsEver(cost: Cost): boolean {
    return cost.memoryBytes <= this.#budget.memoryBytes && cost.vcpus <= this.#budget.vcpus;
  }

  /** Work of an account that waits. */
  waitingCount(accountId: string): number {
    return this.#waiting.reduce((count, entry) => count + (entry.accountId === accountId ? 1 : 0), 0);
  }

  get budget(): Cost {
    return this.#budget;
  }

  /** What running work holds of the budget. */
  get used(): Cost {
    return { memoryBytes: this.#usedMemoryBytes, vcpus: this.#usedVcpus };
  }

  get runningCount(): number {
    return [...this.#running.values()].reduce((sum, count) => sum + count, 0);
  }

  /**
   * Waits for a place. Work whose signal fires leaves the queue at once.
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
      admit: (ticket) => {
        signal.removeEventListener("abort", onAbort);
        resolve(ticket);
      },
    };
    signal.addEventListener("abort", onAbort, { once: true });
    this.#waiting.push(entry);
    this.#dispatch();
    return promise;
  }

  /**
   * Waits for room that nobody else wants. What is admitted here is not counted when other work is: that goes first
   * at any time, and `yield` tells this one to end.
   * @throws the reason of `signal`
   */
  admitIdle(cost: Cost, signal: AbortSignal): Promise<IdleTicket> {
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<IdleTicket>();
    const onAbort = () => {
      this.#idleWaiting.delete(place);
      reject(signal.reason);
    };
    const place: IdlePlace = {
      cost,
      yield: new AbortController(),
      admit: () => {
        signal.removeEventListener("abort", onAbort);
        resolve({ yield: place.yield.signal, [Symbol.dispose]: () => this.#leaveIdle(place) });
      },
    };
    signal.addEventListener("abort", onAbort, { once: true });
    this.#idleWaiting.add(place);
    this.#dispatch();
    return promise;
  }

  #leaveIdle(place: IdlePlace): void {
    if (this.#idleRunning.delete(place)) this.#dispatch();
  }

  #dispatch(): void {
    for (let entry = this.#nextEntry(); entry !== null; entry = this.#nextEntry()) {
      this.#waiting.splice(this.#waiting.indexOf(entry), 1);
      entry.admit(this.#take(entry));
    }
    if (!this.#hasRoomForIdle(NOTHING)) for (const place of this.#idleRunning) place.yield.abort(YIELDED);
    for (const place of this.#idleWaiting) {
      if (!this.#hasRoomForIdle(place.cost)) continue;
      this.#idleWaiting.delete(place);
      this.#idleRunning.add(place);
      place.admit();
    }
  }

  /** Nobody waits, and everything that runs fits the budget together with `cost`. */
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
        (this.#running.get(a.accountId) ?? 0) - (this.#running.get(b.accountId) ?? 0) ||
        (this.#servedAt.get(a.accountId) ?? 0) - (this.#servedAt.get(b.accountId) ?? 0) ||
        a.enqueuedAtMs - b.enqueuedAtMs,
    );
    const nowMs = this.#clock();
    const overdue = order.find((entry) => nowMs - entry.enqueuedAtMs >= RESERVATION_MS && !this.#fits(entry.cost));
    if (overdue !== undefined && this.fitsEver(overdue.cost)) return this.#letBy(overdue, order);
    return order.find((entry) => this.#fits(entry.cost)) ?? null;
  }

  /** What may be admitted although the host drains for `reserved`. */
  #letBy(reserved: Waiting, order: readonly Waiting[]): Waiting | null {
    if (this.#reservation?.entry !== reserved) this.#reservation = { entry: reserved, passed: new Set() };
    const { passed } = this.#reservation;
    const mayPass = ({ accountId, cost }: Waiting): boolean =>
      accountId !== reserved.accountId && !this.#running.has(accountId) && !passed.has(accountId) && this.#fits(cost);
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

  #take({ accountId, cost }: Waiting): Ticket {
    this.#usedMemoryBytes += cost.memoryBytes;
    this.#usedVcpus += cost.vcpus;
    this.#running.set(accountId, (this.#running.get(accountId) ?? 0) + 1);
    this.#servedAt.set(accountId, ++this.#turn);
    let held = true;
    return {
      cost,
      [Symbol.dispose]: () => {
        if (!held) return;
        held = false;
        this.#usedMemoryBytes -= cost.memoryBytes;
        this.#usedVcpus -= cost.vcpus;
        const left = (this.#running.get(accountId) ?? 1) - 1;
        if (left === 0) this.#running.delete(accountId);
        else this.#running.set(accountId, left);
        if (left === 0 && this.waitingCount(accountId) === 0) this.#servedAt.delete(accountId);
        this.#dispatch();
      },
    };
  }
}
