import { ApiError } from "../../domain/errors.ts";
import type { AccountId } from "../../domain/ids.ts";

/** Largest number of requests of one account that are not answered to their ends. Each holds up to half a megabyte. */
const CALLS_COUNT_MAX = 256;
/** The same of all accounts together. */
const CALLS_TOTAL_COUNT_MAX = 1024;

/** What names a request of a client: ids of JSON-RPC are unique within a session only. */
export interface CallName {
  readonly accountId: AccountId;
  /** as the client sent it; null for a client without sessions */
  readonly session: string | null;
  /** null: it cannot be cancelled by name */
  readonly id: string | number | null;
}

/** A request that is being answered. Its disposal, which is idempotent, ends what is done for it. */
export interface Call extends Disposable {
  /** fires when the client cancels the request, leaves, or ends its session */
  readonly signal: AbortSignal;
}

interface Entry {
  readonly name: CallName;
  readonly controller: AbortController;
}

/**
 * The requests that are being answered. A session is nothing but a name that its requests share: none is kept between
 * requests, so that none expires, none takes memory, and all go on after a restart of the service.
 */
export class Calls {
  readonly #countOf = new Map<AccountId, number>();
  readonly #entries = new Set<Entry>();
  /** the entries that can be cancelled by name */
  readonly #named = new Map<string, Entry>();

  /** @throws ApiError `too_many_requests` */
  begin(name: CallName): Call {
    const { accountId } = name;
    const count = this.#countOf.get(accountId) ?? 0;
    if (count >= CALLS_COUNT_MAX || this.#entries.size >= CALLS_TOTAL_COUNT_MAX) {
      throw new ApiError("too_many_requests", "too many requests are waiting for their answers");
    }
    this.#countOf.set(accountId, count + 1);
    const entry = { name, controller: new AbortController() };
    this.#entries.add(entry);
    if (name.id !== null) this.#named.set(keyOf(name), entry);
    return { signal: entry.controller.signal, [Symbol.dispose]: () => this.#end(entry) };
  }

  /** Cancels a request; nothing happens when there is none of that name. */
  cancel(name: CallName): void {
    this.#named.get(keyOf(name))?.controller.abort(cancelled());
  }

  /** Cancels all requests of a session. */
  endSession(accountId: AccountId, session: string): void {
    for (const { name, controller } of this.#entries) {
      if (name.accountId === accountId && name.session === session) controller.abort(cancelled());
    }
  }

  #end(entry: Entry): void {
    if (!this.#entries.delete(entry)) return;
    const { accountId, id } = entry.name;
    const left = (this.#countOf.get(accountId) ?? 1) - 1;
    if (left === 0) this.#countOf.delete(accountId);
    else this.#countOf.set(accountId, left);
    const key = keyOf(entry.name);
    // A client that uses an id twice has given the name to the later request.
    if (id !== null && this.#named.get(key) === entry) this.#named.delete(key);
    entry.controller.abort(cancelled());
  }
}

function keyOf({ accountId, session, id }: CallName): string {
  return JSON.stringify([accountId, session, id]);
}

function cancelled(): Error {
  return new DOMException("the client does not wait any more", "AbortError");
}
