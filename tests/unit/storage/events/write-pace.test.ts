import { expect, test } from "bun:test";
import { WRITE_NOW_BYTES_MAX, WritePace } from "../../../../src/storage/events/write-pace.ts";

test("writes to a log are synchronous when they are small, and not for a while after one that waited", () => {
  let nowMs = 5000;
  const pace = new WritePace(() => nowMs);
  const take = (ms: number) =>
    pace.time(() => {
      nowMs += ms;
    });
  expect([1, WRITE_NOW_BYTES_MAX, WRITE_NOW_BYTES_MAX + 1].map((bytes) => pace.allows(bytes))).toEqual([
    true,
    true,
    false,
  ]);
  take(0.1);
  expect(pace.allows(1)).toBe(true);
  take(30);
  expect(pace.allows(1)).toBe(false);
  nowMs += 999;
  expect(pace.allows(1)).toBe(false);
  nowMs += 1;
  expect(pace.allows(1)).toBe(true);
});
