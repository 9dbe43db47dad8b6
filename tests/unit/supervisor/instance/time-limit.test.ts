import { describe, expect, test } from "bun:test";
import { TimeLimit } from "../../../../src/supervisor/instance/time-limit.ts";

const MINUTE_MS = 60_000;

describe("a limit that counts from the request", () => {
  test.each([
    ["a fifth of a short one is left for what follows the command", 10_000, 0, 8000],
    ["at least a second is left", 3000, 0, 2000],
    ["at most five seconds are left", 10 * MINUTE_MS, 0, 10 * MINUTE_MS - 5000],
    ["the time in the queue counts", MINUTE_MS, 20_000, 35_000],
    ["a command that has hardly any time left gets the whole limit", MINUTE_MS, 55_000, MINUTE_MS],
    ["so does one that begins after the limit", MINUTE_MS, 10 * MINUTE_MS, MINUTE_MS],
    ["so does one with the shortest limit", 1000, 0, 1000],
  ])("%s", (_, ms, waitedMs, expected) => {
    const limit = new TimeLimit(ms, waitedMs);
    const begun = limit.begin();
    expect(limit.ms).toBe(ms);
    expect(begun).toBeLessThanOrEqual(expected);
    // The clock runs between the two calls.
    expect(begun).toBeGreaterThan(expected - 1000);
  });

  test("counts from the start when it was extended", () => {
    const limit = new TimeLimit(MINUTE_MS, 20_000);
    limit.begin();
    expect(limit.extend(MINUTE_MS - 1)).toBe(false);
    expect(limit.extend(MINUTE_MS)).toBe(true);
    expect([limit.ms, limit.begin()]).toEqual([MINUTE_MS, MINUTE_MS]);
  });
});

test("a limit that counts from the start is the same whenever the command begins", () => {
  const limit = new TimeLimit(MINUTE_MS);
  expect([limit.begin(), limit.ms]).toEqual([MINUTE_MS, MINUTE_MS]);
});
