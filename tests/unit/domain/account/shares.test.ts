import { expect, test } from "bun:test";
import { Shares } from "../../../../src/domain/account/shares.ts";

/** Takes places until there are no more. */
function takeAll(shares: Shares, account: string | null): Disposable[] {
  const places: Disposable[] = [];
  for (let place = shares.take(account); place !== null; place = shares.take(account)) places.push(place);
  return places;
}

test("one account gets half of the places, later ones half of the rest, and tools always some", () => {
  const shares = new Shares({ total: 100, reserved: 20 });
  expect(takeAll(shares, "one")).toHaveLength(40);
  expect(takeAll(shares, "two")).toHaveLength(20);
  expect(takeAll(shares, "three")).toHaveLength(10);
  expect(takeAll(shares, "one")).toHaveLength(0);
  expect(takeAll(shares, null)).toHaveLength(30);
  expect(shares.take("four")).toBeNull();
});

test("a place that is given back is free again, once", () => {
  const shares = new Shares({ total: 4 });
  const [first, second] = takeAll(shares, "one");
  first?.[Symbol.dispose]();
  first?.[Symbol.dispose]();
  expect(takeAll(shares, "one")).toHaveLength(1);
  second?.[Symbol.dispose]();
  expect(takeAll(shares, null)).toHaveLength(3);
  // An owner that holds nothing takes no memory.
  expect(shares.ownersCount).toBe(1);
});

test("an owner has a largest share where there is one", () => {
  const shares = new Shares({ total: 100, ownerMax: 25 });
  const counts = ["one", "two", "three", "four", "five"].map((owner) => takeAll(shares, owner).length);
  expect(counts).toEqual([25, 25, 25, 13, 6]);
});

test("parts have sizes: the first one of an owner needs room only, and the first of all not even that", () => {
  const shares = new Shares({ total: 10, ownerMax: 4 });
  const whole = shares.take("one", 100);
  expect(whole).not.toBeNull();
  expect(shares.take("two", 1)).toBeNull();
  whole?.[Symbol.dispose]();
  expect(shares.take("one", 6)).not.toBeNull();
  expect(shares.take("one", 1)).toBeNull();
  expect(shares.take("two", 5)).toBeNull();
  expect(shares.take("two", 1)).not.toBeNull();
  expect(shares.take("two", 3)).toBeNull();
  expect([shares.heldBy("one"), shares.heldBy("two"), shares.heldBy("three")]).toEqual([6, 1, 0]);
});

test("the spare part is for owners that hold nothing, one after the other", () => {
  const shares = new Shares({ total: 100, spare: 20, ownerMax: 25 });
  const owners = Array.from({ length: 25 }, (_, n) => takeAll(shares, `owner-${n}`).length);
  expect(owners.slice(0, 4)).toEqual([25, 25, 25, 5]);
  expect(owners.slice(4)).toEqual([...Array(20).fill(1), 0]);
  expect(shares.take("owner-0")).toBeNull();
});
