import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { matchesAny, parseRange } from "../../../src/api/range.ts";

describe("a single range", () => {
  test.each([
    ["bytes=0-0", 10, { start: 0, end: 1 }],
    ["bytes=2-5", 10, { start: 2, end: 6 }],
    ["bytes=2-", 10, { start: 2, end: 10 }],
    ["bytes=2-100", 10, { start: 2, end: 10 }],
    ["bytes=-3", 10, { start: 7, end: 10 }],
    ["bytes=-30", 10, { start: 0, end: 10 }],
    ["Bytes = 1 - 2", 10, { start: 1, end: 3 }],
    ["bytes=10-", 10, "unsatisfiable"],
    ["bytes=0-", 0, "unsatisfiable"],
    ["bytes=-0", 10, "unsatisfiable"],
    ["bytes=-5", 0, "unsatisfiable"],
  ] as const)("%s of %d bytes", (header, size, expected) => {
    expect(parseRange(header, size)).toEqual(expected);
  });

  test.each([
    null,
    "",
    "bytes",
    "bytes=",
    "bytes=-",
    "bytes=5-2",
    "bytes=a-b",
    "lines=1-2",
    "bytes=0-1,3-4",
    "bytes=0x1-2",
  ])("%j is ignored, as RFC 9110 has it", (header) => {
    expect(parseRange(header, 10)).toBeNull();
  });

  test("every requested part is inside the file and not empty", () => {
    void fc.assert(
      fc.property(fc.option(fc.nat()), fc.option(fc.nat()), fc.nat(10_000), (first, last, size) => {
        const part = parseRange(`bytes=${first ?? ""}-${last ?? ""}`, size);
        if (part === null || part === "unsatisfiable") return;
        expect(part.start).toBeLessThan(part.end);
        expect(part.end).toBeLessThanOrEqual(size);
      }),
    );
  });
});

test("If-None-Match accepts lists, stars and weak tags", () => {
  expect(matchesAny('"a"', '"a"')).toBe(true);
  expect(matchesAny('"b", W/"a"', '"a"')).toBe(true);
  expect(matchesAny("*", '"a"')).toBe(true);
  expect(matchesAny('"b"', '"a"')).toBe(false);
  expect(matchesAny(null, '"a"')).toBe(false);
});
