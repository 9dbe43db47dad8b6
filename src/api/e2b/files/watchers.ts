import { randomBytes } from "node:crypto";
import type { Accounts } from "../../../domain/account/accounts.ts";
import type { AccountId, SandboxId } from "../../../domain/ids.ts";
import { untilAborted } from "../../../system/waiting.ts";
import { RpcError, rpcErrorOf } from "../rpc/errors.ts";
import type { DirectoryWatch, FilesystemEvent } from "./events.ts";

/** Watchers of one sandbox, with those whose directory is gone. The guest may have room for fewer. */
export const WATCHERS_COUNT_MAX = 64;
/** Events of one watcher that wait for a request. */
const EVENTS_COUNT_MAX = 10_000;
/** Their bytes are counted in such steps. */
const STEP_BYTES = 65_536;
/** A watcher without a request for so long is given back, in `milliseconds`. */
const IDLE_MS_MAX = 1_800_000;
const ID_BYTES = 10;

/** The sandbox of a watcher, and its account. */
export interface WatcherOwner {
  readonly id: SandboxId;
  readonly accountId: AccountId;
}

/** Opens a watch that lasts until the signal fires. */
export type OpenWatch = (signal: AbortSignal) => Promise<DirectoryWatch>;

export interface WatchersOptions {
  readonly accounts: Pick<Accounts, "take">;
  readonly idleMsMax?: number;
}

/** The watchers of sandboxes: watches whose events wait until a client requests them. */
export class Watchers {
  readonly #options: WatchersOptions;
  readonly #watchers = new Map<SandboxId, Map<string, Watcher | null>>();

  constructor(options: WatchersOptions) {
    this.#options = options;
  }

  /** Makes a watcher, and returns its id. @throws RpcError `resource_exhausted`; as `open` does; the reason of `signal` */
  async create({ id: sandbox, accountId }: WatcherOwner, open: OpenWatch, signal: AbortSignal): Promise<string> {
    const { accounts, idleMsMax = IDLE_MS_MAX } = this.#options;
    const id = `w${randomBytes(ID_BYTES).toString("hex")}`;
    using undo = new DisposableStack();
    undo.use(this.#reserve(sandbox, id));
    const end = new AbortController();
    const opening = open(end.signal);
    const watch = await untilAborted(opening, signal).catch((error: unknown) => {
      end.abort(error);
      // It may open all the same.
      opening.then(
        (late) => late[Symbol.dispose](),
        () => undefined,
      );
      throw error;
    });
    const place = undo.move();
    const count = (bytes: number) => accounts.take(accountId, { waitingEvents: bytes });
    this.#watchers.get(sandbox)?.set(id, new Watcher(watch, { end, place, count, idleMsMax }));
    return id;
  }

  /** The events since the last request, up to now. @throws RpcError `not_found`; `internal` when events were lost */
  async events(sandbox: SandboxId, id: string, signal: AbortSignal): Promise<WaitedEvents> {
    return await this.#require(sandbox, id).take(signal);
  }

  /** @throws RpcError `not_found` */
  remove(sandbox: SandboxId, id: string): void {
    this.#require(sandbox, id)[Symbol.dispose]();
  }

  #require(sandbox: SandboxId, id: string): Watcher {
    const watcher = this.#watchers.get(sandbox)?.get(id) ?? null;
    if (watcher === null) throw new RpcError("not_found", `watcher with id ${id.slice(0, 200)} not found`);
    return watcher;
  }

  /** A place for a watcher of a sandbox, until disposal. */
  #reserve(sandbox: SandboxId, id: string): Disposable {
    const ofSandbox = this.#watchers.get(sandbox) ?? new Map<string, Watcher | null>();
    if (ofSandbox.size === WATCHERS_COUNT_MAX) {
      throw new RpcError("resource_exhausted", `the sandbox has ${WATCHERS_COUNT_MAX} watchers already`);
    }
    this.#watchers.set(sandbox, ofSandbox.set(id, null));
    return {
      [Symbol.dispose]: () => {
        ofSandbox.delete(id);
        if (ofSandbox.size === 0) this.#watchers.delete(sandbox);
      },
    };
  }
}

/** Events that waited for a request, and their room, which its answer takes over. */
export interface WaitedEvents {
  readonly events: readonly FilesystemEvent[];
  readonly room: Disposable;
}

interface WatcherOptions {
  readonly end: AbortController;
  /** its place among those of the sandbox */
  readonly place: Disposable;
  /** Counts `bytes` of the account until disposal. @throws ApiError `too_many_requests` */
  readonly count: (bytes: number) => Disposable;
  readonly idleMsMax: number;
}

/** One watcher, which takes events as they come. Disposal is idempotent. */
class Watcher implements Disposable {
  readonly #watch: DirectoryWatch;
  readonly #options: WatcherOptions;
  readonly #idle: Timer;
  /** resolves when no further event comes */
  readonly #collected: Promise<void>;
  #events: FilesystemEvent[] = [];
  /** room for events that are not in the array yet, in `bytes` */
  #roomBytes = 0;
  #held = new DisposableStack();
  /** why no further event comes; null: the watch ended with its directory */
  #over: { readonly error: RpcError | null } | undefined;

  constructor(watch: DirectoryWatch, options: WatcherOptions) {
    this.#watch = watch;
    this.#options = options;
    this.#idle = setTimeout(() => this[Symbol.dispose](), options.idleMsMax).unref();
    this.#collected = this.#collect();
  }

  async take(signal: AbortSignal): Promise<WaitedEvents> {
    this.#idle.refresh();
    if (this.#over === undefined) {
      // It fails only when the watch ends, whose reason follows.
      const synced = this.#watch.sync().catch(() => this.#collected);
      await untilAborted(synced, signal);
    }
    if (this.#over?.error) throw this.#over.error;
    return this.#empty();
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#idle);
    this.#empty().room[Symbol.dispose]();
    this.#options.place[Symbol.dispose]();
    this.#options.end.abort(new RpcError("canceled", "the watcher was removed"));
    this.#watch[Symbol.dispose]();
  }

  async #collect(): Promise<void> {
    using watch = this.#watch;
    try {
      for await (const event of watch.events) this.#push(event);
      this.#over = { error: null };
    } catch (error) {
      this.#empty().room[Symbol.dispose]();
      const failure = rpcErrorOf(error);
      this.#over = { error: failure };
      // Any other failure means that the machine is gone, and its watchers with it.
      if (failure.code !== "internal") this[Symbol.dispose]();
    }
  }

  /** @throws RpcError when too many events wait for a request */
  #push(event: FilesystemEvent): void {
    const bytes = JSON.stringify(event).length;
    try {
      for (; this.#roomBytes < bytes; this.#roomBytes += STEP_BYTES) this.#held.use(this.#options.count(STEP_BYTES));
    } catch (error) {
      throw tooMany(error);
    }
    if (this.#events.length === EVENTS_COUNT_MAX) throw tooMany();
    this.#roomBytes -= bytes;
    this.#events.push(event);
  }

  #empty(): WaitedEvents {
    const waited = { events: this.#events, room: this.#held.move() };
    this.#events = [];
    this.#roomBytes = 0;
    this.#held = new DisposableStack();
    return waited;
  }
}

function tooMany(cause?: unknown): RpcError {
  return new RpcError("internal", "watcher error: too many events were not requested", { cause });
}
