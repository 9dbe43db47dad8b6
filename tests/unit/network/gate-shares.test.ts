import { expect, test } from "bun:test";
import { Shares } from "../../../src/network/gate/shares.ts";

/** Takes places until there are no more. */
function takeAll(shares: Shares, account: string | null): Disposable[] {
  const places: Disposable[] = [];
  for (let place = shares.take(account); place !== null; place = shares.take(account)) places.push(place);
  return places;
}

test("one account gets half of the places, later ones half of the rest, and tools always some", () => {
  const shares = new Shares(100, 20);
  expect(takeAll(shares, "one")).toHaveLength(40);
  expect(takeAll(shares, "two")).toHaveLength(20);
  expect(takeAll(shares, "three")).toHaveLength(10);
  expect(takeAll(shares, "one")).toHaveLength(0);
  expect(takeAll(shares, null)).toHaveLength(30);
  expect(shares.take("four")).toBeNull();
});

test("a place that is given back is free again, once", () => {
  const shares = new Shares(4, 0);
  const [first, second] = takeAll(shares, "one");
  first?.[Symbol.dispose]();
  first?.[Symbol.dispose]();
  expect(takeAll(shares, "one")).toHaveLength(1);
  second?.[Symbol.dispose]();
  expect(takeAll(shares, null)).toHaveLength(3);
});
