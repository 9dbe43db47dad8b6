import { expect, test } from "bun:test";
import { WalkLimiter } from "../../src/service/walk-limiter.ts";
import { alice, bob } from "../support/database.ts";
import { failureOf, throwing } from "../support/failures.ts";

const never = new AbortController().signal;
const LONG_MS = 600_000;

test("an account has a limited number of places, and returned ones go to waiting callers in order", async () => {
  const walks = new WalkLimiter({ countMax: 2, waitMsMax: LONG_MS });
  const first = await walks.take(alice, never);
  await walks.take(alice, never);
  const order: string[] = [];
  const [second, third] = ["second", "third"].map(async (name) => {
    const place = await walks.take(alice, never);
    order.push(name);
    return place;
  });
  await walks.take(bob, never);
  expect(order).toEqual([]);
  first[Symbol.dispose]();
  first[Symbol.dispose]();
  (await second)?.[Symbol.dispose]();
  await third;
  expect(order).toEqual(["second", "third"]);
});

test("a caller that waits too long is refused, and one that leaves is forgotten: neither takes a place", async () => {
  const walks = new WalkLimiter({ countMax: 1, waitMsMax: 10 });
  const held = await walks.take(alice, never);
  expect(await failureOf(walks.take(alice, never))).toMatchObject({ code: "too_many_requests" });
  const left = new AbortController();
  const leaving = walks.take(alice, left.signal);
  left.abort(new Error("left"));
  expect(await throwing(leaving)).toThrow("left");
  expect(await throwing(walks.take(alice, left.signal))).toThrow("left");
  held[Symbol.dispose]();
  (await walks.take(alice, never))[Symbol.dispose]();
});
