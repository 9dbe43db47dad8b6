import { describe, expect, test } from "bun:test";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import {
  ACCOUNT_LIMITS,
  type AccountLimit,
  type AccountLimits,
  type LimitName,
} from "../../../../src/domain/account/limits.ts";
import { ApiError } from "../../../../src/domain/errors.ts";
import { alice, bob } from "../../../support/database.ts";
import { failureOf, throwing } from "../../../support/failures.ts";

const { signal: never } = new AbortController();
const accountLimits: AccountLimits = ACCOUNT_LIMITS;
const NAMES = Object.keys(ACCOUNT_LIMITS) as LimitName[];

/** The error of a take that is refused; null when it is not. */
function refusalOf(take: () => unknown): ApiError | null {
  try {
    take();
    return null;
  } catch (error) {
    if (error instanceof ApiError) return error;
    throw error;
  }
}

describe("a wait for a use", () => {
  test("lets an account have some, and passes returned ones on in order", async () => {
    const accounts = new Accounts({ walks: { max: 2 } });
    const first = await accounts.wait(alice, "walks", { signal: never });
    await accounts.wait(alice, "walks", { signal: never });
    const order: string[] = [];
    const [second, third] = ["second", "third"].map(async (name) => {
      const place = await accounts.wait(alice, "walks", { signal: never });
      order.push(name);
      return place;
    });
    await accounts.wait(bob, "walks", { signal: never });
    expect(order).toEqual([]);
    first[Symbol.dispose]();
    first[Symbol.dispose]();
    (await second)?.[Symbol.dispose]();
    await third;
    expect(order).toEqual(["second", "third"]);
  });

  test("ends with a refusal when it is too long, and is forgotten with its caller: neither takes a use", async () => {
    const accounts = new Accounts({ walks: { max: 1, waitMsMax: 10 } });
    const walk = (signal: AbortSignal) => accounts.wait(alice, "walks", { signal });
    const held = await walk(never);
    expect(await failureOf(walk(never))).toMatchObject({ code: "too_many_requests" });
    const left = new AbortController();
    const leaving = walk(left.signal);
    left.abort(new Error("left"));
    expect(await throwing(leaving)).toThrow("left");
    expect(await throwing(walk(left.signal))).toThrow("left");
    held[Symbol.dispose]();
    (await walk(never))[Symbol.dispose]();
  });
});

describe("the record of an account", () => {
  test("says what it uses of every limit, and is empty when it uses nothing", async () => {
    const accounts = new Accounts({ calls: { max: 3 } });
    const uses = [
      accounts.take(alice, "calls"),
      accounts.add(alice, { running: 1, memory: 5000, vcpus: 2 }),
      accounts.take(alice, { waitingOperations: 1, waitingRequests: 7 }),
      await accounts.wait(alice, "uploads", { size: 9, signal: never }),
    ];
    const used = () => [...accounts.usage(alice)].flatMap(([name, { used }]) => (used > 0 ? [[name, used]] : []));
    expect(Object.fromEntries(used())).toEqual({
      ...{ calls: 1, running: 1, memory: 5000, vcpus: 2 },
      ...{ waitingOperations: 1, waitingRequests: 7, uploads: 9 },
    });
    expect(accounts.usage(alice).get("calls")).toEqual({ unit: "requests", used: 1, limit: 3 });
    expect([...accounts.usage(alice).keys()]).toEqual(NAMES);
    for (const use of uses) use[Symbol.dispose]();
    for (const use of uses) use[Symbol.dispose]();
    expect(used()).toEqual([]);
  });

  test("has all uses that belong together, or none", () => {
    const accounts = new Accounts({ waitingRequests: { max: 10 } });
    const take = (size: number) => accounts.take(alice, { waitingOperations: 1, waitingRequests: size });
    take(8);
    const refusal = refusalOf(() => take(4));
    expect(refusal).toMatchObject({ code: "too_many_requests", details: { limit_bytes: 10 } });
    expect(refusal?.message).toBe("the waiting operations of this account have 8 bytes of requests already");
    expect(accounts.used(alice, "waitingOperations")).toBe(1);
  });
});

test("a refusal names the limit of the account that has no room, and when to try again", () => {
  const accounts = new Accounts({ calls: { max: 1 }, waitingQueries: { total: 18, spare: 1, max: 9 } });
  accounts.take(alice, "calls");
  expect(refusalOf(() => accounts.take(alice, "calls"))?.details).toEqual({ limit: 1 });
  // One of two is spare, and sixteen are the appliance's own.
  accounts.take(alice, "waitingQueries");
  expect(refusalOf(() => accounts.take(alice, "waitingQueries"))?.details).toEqual({ retry_after_seconds: 1 });
  accounts.take(null, { waitingQueries: 17 });
  expect(refusalOf(() => accounts.take(null, "waitingQueries"))).toMatchObject({ code: "too_many_requests" });
});

describe("a total", () => {
  const totals = NAMES.filter((name) => accountLimits[name].total !== undefined);
  /** of one use, where that is not 1 */
  const sizes: { readonly [Name in LimitName]?: number } = {
    ...{ bodies: 1_048_576, largeBodies: 1.5 * 1_048_576, uploads: 2_097_152, inputs: 2_097_152 },
    ...{ waitingEvents: 65_536, listings: 65_536 },
  };

  test.each(totals)("of %s is not used up by twenty accounts that take all they get", (name) => {
    const accounts = new Accounts();
    const size = sizes[name] ?? 1;
    for (let n = 0; n < 20; n++) {
      let count = 0;
      while (refusalOf(() => accounts.take(`account-${n}`, { [name]: size })) === null) count += 1;
      expect(count).toBeGreaterThan(0);
    }
    expect(refusalOf(() => accounts.take("late", { [name]: size }))).toBeNull();
    // Nothing is set aside for each: one alone has as much as it may.
    const alone = new Accounts();
    const { max, total, reserved = 0 } = accountLimits[name] as Required<AccountLimit>;
    while (refusalOf(() => alone.take(alice, { [name]: size })) === null);
    expect(alone.used(alice, name)).toBeGreaterThan(Math.min(max, (total - reserved) / 2) - size);
  });
});
