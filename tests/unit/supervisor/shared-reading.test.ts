import { expect, test } from "bun:test";
import { SharedReading } from "../../../src/supervisor/shared-reading.ts";

/** A reading that the test ends. */
function held() {
  const readings: PromiseWithResolvers<number>[] = [];
  const read = (): Promise<number> => {
    const reading = Promise.withResolvers<number>();
    readings.push(reading);
    return reading.promise;
  };
  return { readings, read };
}

test("callers share one reading, and its result until it is too old", async () => {
  const { readings, read } = held();
  const shared = new SharedReading(read, 60_000);
  const together = [shared.get(), shared.get()];
  readings[0]?.resolve(1);
  expect(await Promise.all(together)).toEqual([1, 1]);
  expect(await shared.get()).toBe(1);
  expect(readings).toHaveLength(1);

  const old = new SharedReading(read, -1);
  const first = old.get();
  readings[1]?.resolve(2);
  expect(await first).toBe(2);
  const second = old.get();
  readings[2]?.resolve(3);
  expect(await second).toBe(3);
});

test("a failure reaches all waiting callers, and is not cached", async () => {
  const { readings, read } = held();
  const shared = new SharedReading(read, 60_000);
  const together = Promise.allSettled([shared.get(), shared.get()]);
  readings[0]?.reject(new Error("no"));
  expect((await together).map(({ status }) => status)).toEqual(["rejected", "rejected"]);
  const again = shared.get();
  readings[1]?.resolve(4);
  expect(await again).toBe(4);
});

test("a reading that began before `forget` is not a result afterwards", async () => {
  const { readings, read } = held();
  const shared = new SharedReading(read, 60_000);
  const before = shared.get();
  shared.forget();
  const after = shared.get();
  readings[0]?.resolve(5);
  expect(await before).toBe(5);
  const joined = shared.get();
  readings[1]?.resolve(6);
  expect(await Promise.all([after, joined])).toEqual([6, 6]);
  expect(await shared.get()).toBe(6);
});
