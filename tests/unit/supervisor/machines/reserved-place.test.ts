import { expect, test } from "bun:test";
import { ReservedPlace } from "../../../../src/supervisor/machines/reserved-place.ts";
import { throwing } from "../../../support/failures.ts";

const never = new AbortController().signal;

test("one caller has the place at a time, and accounts take turns", async () => {
  const place = new ReservedPlace();
  const order: string[] = [];
  const first = await place.take("a", never);
  const work = async (account: string, name: string) => {
    using _held = await place.take(account, never);
    order.push(`${name} begins`);
    await Promise.resolve();
    order.push(`${name} ends`);
  };
  const all = [work("a", "a1"), work("a", "a2"), work("b", "b1")];
  await Promise.resolve();
  expect(order).toEqual([]);
  first[Symbol.dispose]();
  first[Symbol.dispose]();
  await Promise.all(all);
  expect(order).toEqual(["a1", "b1", "a2"].flatMap((name) => [`${name} begins`, `${name} ends`]));
  (await place.take("c", never))[Symbol.dispose]();
});

test("a caller that stops waiting does not delay the others, even in the turn in which it gets the place", async () => {
  const place = new ReservedPlace();
  const held = await place.take("a", never);
  const gone = new AbortController();
  const waiting = place.take("b", gone.signal);
  gone.abort(new Error("gone"));
  expect(await waiting.catch((error: Error) => error.message)).toBe("gone");
  const late = new AbortController();
  const given = place.take("b", late.signal);
  const last = place.take("c", never);
  held[Symbol.dispose]();
  late.abort(new Error("too late"));
  (await given)[Symbol.dispose]();
  (await last)[Symbol.dispose]();
  expect(await throwing(place.take("d", late.signal))).toThrow("too late");
});
