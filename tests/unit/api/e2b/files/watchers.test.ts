/** Watchers, whose events wait until they are requested. */
import { describe, expect, test } from "bun:test";
import type { DirectoryWatch, FilesystemEvent } from "../../../../../src/api/e2b/files/events.ts";
import { WATCHERS_COUNT_MAX, Watchers } from "../../../../../src/api/e2b/files/watchers.ts";
import type { RpcError } from "../../../../../src/api/e2b/rpc/errors.ts";
import { Accounts } from "../../../../../src/domain/account/accounts.ts";
import { ApiError } from "../../../../../src/domain/errors.ts";
import type { AccountId, SandboxId } from "../../../../../src/domain/ids.ts";
import { failureOf } from "../../../../support/failures.ts";
import { turns, until } from "../../../../support/waiting.ts";

const NEVER = new AbortController().signal;
const OWNER = { id: "s" as SandboxId, accountId: "alice" as AccountId };
const EVENT: FilesystemEvent = { name: "f", type: "EVENT_TYPE_WRITE" };

/** A watch whose events the test sends. */
class FakeWatch implements DirectoryWatch {
  isDisposed = false;
  readonly #waiting: (() => Promise<FilesystemEvent | null>)[] = [];
  #wake = Promise.withResolvers<void>();

  send(...events: readonly FilesystemEvent[]): void {
    for (const event of events) this.#waiting.push(async () => event);
    this.#wake.resolve();
  }

  end(error: unknown = null): void {
    this.#waiting.push(async () => {
      if (error !== null) throw error;
      return null;
    });
    this.#wake.resolve();
  }

  get events() {
    return this.#events();
  }

  async sync(): Promise<void> {
    await until("the reader has all", () => this.isDisposed || this.#waiting.length === 0);
    if (this.isDisposed) throw new Error("the watch has ended");
    await turns(1);
  }

  [Symbol.dispose](): void {
    this.isDisposed = true;
  }

  async *#events(): AsyncGenerator<FilesystemEvent, void, undefined> {
    for (;;) {
      const next = this.#waiting.shift();
      if (next === undefined) {
        await this.#wake.promise;
        this.#wake = Promise.withResolvers();
        continue;
      }
      const event = await next();
      if (event === null) return;
      yield event;
    }
  }
}

function opened(options: { readonly idleMsMax?: number } = {}) {
  const accounts = new Accounts();
  const watchers = new Watchers({ accounts, ...options });
  const watch = new FakeWatch();
  const used = () => accounts.used(OWNER.accountId, "waitingEvents");
  return { watchers, watch, used, create: () => watchers.create(OWNER, async () => watch, NEVER) };
}

const codeOf = async (promise: Promise<unknown>) => ((await failureOf(promise)) as RpcError).code as string;

describe("a watcher", () => {
  test("gives each event once, and counts those that wait", async () => {
    const { watchers, watch, used, create } = opened();
    const id = await create();
    watch.send(EVENT, { ...EVENT, name: "g" });
    const { events, room } = await watchers.events(OWNER.id, id, NEVER);
    expect(events).toEqual([EVENT, { ...EVENT, name: "g" }]);
    // The answer has them until its client has read it.
    expect(used()).toBeGreaterThan(0);
    room[Symbol.dispose]();
    expect(used()).toBe(0);
    watch.send(EVENT);
    await watch.sync();
    expect(used()).toBeGreaterThan(0);
    watchers.remove(OWNER.id, id);
    expect([used(), watch.isDisposed]).toEqual([0, true]);
    expect(await codeOf(watchers.events(OWNER.id, id, NEVER))).toBe("not_found");
  });

  test("with too many events, or too many bytes, fails and gives them back", async () => {
    for (const event of [EVENT, { ...EVENT, name: "x".repeat(8192) }]) {
      const { watchers, watch, used, create } = opened();
      const id = await create();
      watch.send(...Array.from({ length: 10_001 }, () => event));
      expect(await codeOf(watchers.events(OWNER.id, id, NEVER))).toBe("internal");
      expect([used(), watch.isDisposed]).toEqual([0, true]);
      watchers.remove(OWNER.id, id);
    }
  });

  test("whose directory is gone gives its last events", async () => {
    const { watchers, watch, create } = opened();
    const id = await create();
    watch.send(EVENT);
    watch.end();
    await until("the watch is given back", () => watch.isDisposed);
    expect(await watchers.events(OWNER.id, id, NEVER)).toMatchObject({ events: [EVENT] });
    expect(await watchers.events(OWNER.id, id, NEVER)).toMatchObject({ events: [] });
  });

  test("ends with its machine, or when it is unused for long", async () => {
    const { watchers, watch, create } = opened();
    const id = await create();
    watch.end(new ApiError("conflict", "the sandbox is paused"));
    await until("the watch is given back", () => watch.isDisposed);
    expect(await codeOf(watchers.events(OWNER.id, id, NEVER))).toBe("not_found");
    const idle = opened({ idleMsMax: 1 });
    await idle.create();
    await until("the watch is given back", () => idle.watch.isDisposed);
  });

  test("is one of a number, and a client that leaves takes none of it", async () => {
    const { watchers, watch } = opened();
    const left = new AbortController();
    const opening = Promise.withResolvers<FakeWatch>();
    const creating = Array.from({ length: WATCHERS_COUNT_MAX }, () =>
      failureOf(watchers.create(OWNER, () => opening.promise, left.signal)),
    );
    const { promise } = opening;
    expect(await codeOf(watchers.create(OWNER, () => promise, NEVER))).toBe("resource_exhausted");
    left.abort(new Error("left"));
    await Promise.all(creating);
    opening.resolve(watch);
    await until("the watch is given back", () => watch.isDisposed);
    await watchers.create(OWNER, async () => new FakeWatch(), NEVER);
  });
});
