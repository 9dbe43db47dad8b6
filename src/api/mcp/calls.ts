import type { Accounts } from "../../domain/account/accounts.ts";
import type { AccountId } from "../../domain/ids.ts";

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
  /** aborted when the client cancels the request, leaves, or ends its session */
  readonly left: AbortController;
}

interface Entry {
  readonly name: CallName;
  readonly left: AbortController;
  readonly place: Disposable;
}

/**
 * The requests that are being answered. A session is nothing but a name that its requests share: none is kept between
 * requests, so that none expires, none takes memory, and all go on after a restart of the service.
 */
export class Calls {
  readonly #accounts: Accounts;
  readonly #entries = new Set<Entry>();
  /** the entries that can be cancelled by name */
  readonly #named = new Map<string, Entry>();

  constructor(accounts: Accounts) {
    this.#accounts = accounts;
  }

  /** @throws ApiError `too_many_requests` */
  begin(name: CallName): Call {
    const place = this.#accounts.take(name.accountId, "calls");
    const entry = { name, left: new AbortController(), place };
    this.#entries.add(entry);
    if (name.id !== null) this.#named.set(keyOf(name), entry);
    return { left: entry.left, [Symbol.dispose]: () => this.#end(entry) };
  }

  /** Cancels a request; nothing happens when there is none of that name. */
  cancel(name: CallName): void {
    this.#named.get(keyOf(name))?.left.abort(cancelled());
  }

  /** Cancels all requests of a session. */
  endSession(accountId: AccountId, session: string): void {
    for (const { name, left } of this.#entries) {
      if (name.accountId === accountId && name.session === session) left.abort(cancelled());
    }
  }

  #end(entry: Entry): void {
    if (!this.#entries.delete(entry)) return;
    entry.place[Symbol.dispose]();
    const key = keyOf(entry.name);
    // A client that uses an id twice has given the name to the later request.
    if (this.#named.get(key) === entry) this.#named.delete(key);
    entry.left.abort(cancelled());
  }
}

function keyOf({ accountId, session, id }: CallName): string {
  return JSON.stringify([accountId, session, id]);
}

function cancelled(): Error {
  return new DOMException("the client does not wait any more", "AbortError");
}
