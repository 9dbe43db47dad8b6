import { describe, expect, test } from "bun:test";
import { sleepUnlessAborted, untilAborted, withinTime } from "../../../src/system/waiting.ts";
import { throwing } from "../../support/failures.ts";
import { turns } from "../../support/waiting.ts";

const LONG_MS = 600_000;
const never = new Promise<never>(() => undefined);

describe("withinTime", () => {
  test("settles as the work does", async () => {
    expect(await withinTime(Promise.resolve(1), LONG_MS, () => null)).toBe(1);
    expect(await throwing(withinTime(Promise.reject(new Error("of the work")), LONG_MS, () => null))).toThrow(
      "of the work",
    );
  });

  test("returns or throws the substitute for late work, whose failure is then ignored", async () => {
    const { promise, reject } = Promise.withResolvers<never>();
    expect(await withinTime(promise, 1, () => null)).toBeNull();
    const thrown = withinTime(never, 1, () => {
      throw new Error("late");
    });
    expect(await throwing(thrown)).toThrow("late");
    reject(new Error("of work without a waiting caller"));
    await turns();
  });
});

describe("untilAborted", () => {
  test("settles as the work does, or with the reason of the signal", async () => {
    const abort = new AbortController();
    expect(await untilAborted(Promise.resolve(1), abort.signal)).toBe(1);
    const waiting = untilAborted(never, abort.signal);
    abort.abort(new Error("enough"));
    expect(await throwing(waiting)).toThrow("enough");
    expect(await throwing(untilAborted(never, abort.signal))).toThrow("enough");
  });
});

describe("waits for a long-lived promise", () => {
  /** A promise that counts the reactions that are attached to it. */
  function counted() {
    const { promise, resolve } = Promise.withResolvers<number>();
    const reactions = { count: 0 };
    const then = promise.then.bind(promise);
    // biome-ignore lint/suspicious/noThenProperty: a promise that counts its reactions.
    promise.then = ((...handlers: Parameters<typeof then>) => {
      reactions.count++;
      return then(...handlers);
    }) as typeof promise.then;
    return { promise, resolve, reactions };
  }

  test("leave no reaction on it, in any number", async () => {
    const { promise, resolve, reactions } = counted();
    for (let round = 0; round < 100; round++) {
      expect(await withinTime(promise, 0, () => null)).toBeNull();
      expect(await throwing(untilAborted(promise, AbortSignal.abort(new Error("left"))))).toThrow("left");
    }
    expect(reactions.count).toBe(1);
    const waiting = [withinTime(promise, LONG_MS, () => null), untilAborted(promise, new AbortController().signal)];
    resolve(7);
    expect(await Promise.all(waiting)).toEqual([7, 7]);
    expect(await untilAborted(promise, AbortSignal.abort())).toBe(7);
    expect(await withinTime(promise, 0, () => null)).toBe(7);
  });
});

describe("sleepUnlessAborted", () => {
  test("ends after its time, and at once with the signal", async () => {
    const abort = new AbortController();
    await sleepUnlessAborted(1, abort.signal);
    const sleeping = sleepUnlessAborted(LONG_MS, abort.signal);
    abort.abort();
    await sleeping;
    await sleepUnlessAborted(LONG_MS, abort.signal);
  });
});
