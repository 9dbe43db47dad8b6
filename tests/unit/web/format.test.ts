import { describe, expect, test } from "bun:test";
import { ageText, bytesText, countOf, durationText, shortId, timeText } from "../../../src/web/text/format.ts";

describe("figures", () => {
  test("of bytes have one decimal below 100, and always less than 1024 of a unit", () => {
    expect([0, 1, 1023, 1024, 1536, 102_400, 1_048_575, 1_048_576].map(bytesText)).toEqual([
      ...["0 B", "1 B", "1023 B", "1.0 KiB", "1.5 KiB", "100 KiB", "1.0 MiB", "1.0 MiB"],
    ]);
    expect(bytesText(-2048)).toBe("−2.0 KiB");
    expect(bytesText(2 ** 62)).toBe("4096 PiB");
  });

  test("of durations have at most two units", () => {
    expect(
      [0, 999.4, 999.6, 1_500, 9_949, 9_950, 59_400, 60_000, 61_000, 3_600_000, 5_400_000].map(durationText),
    ).toEqual([
      ...["0 ms", "999 ms", "1.0 s", "1.5 s", "9.9 s", "10 s", "59 s", "1 min", "1 min 1 s", "1 h", "1 h 30 min"],
    ]);
    expect(durationText(90_000_000)).toBe("1 d 1 h");
    expect(durationText(-5)).toBe("0 ms");
  });

  test("of age have one unit and a direction", () => {
    const now = Date.parse("2026-01-10T12:00:00Z");
    const ago = (seconds: number) => ageText(now - seconds * 1000, now);
    expect([5, 30, 90, 7_200, 86_400 * 3, 86_400 * 90, 86_400 * 1000].map(ago)).toEqual([
      ...["just now", "30 s ago", "1 min ago", "2 h ago", "3 d ago", "2 months ago", "2 years ago"],
    ]);
    expect(ageText(now + 300_000, now)).toBe("in 5 min");
  });

  test("of times are exact and have the zone, or say that there is no time", () => {
    expect(timeText(Date.parse("2026-01-10T12:00:00Z"))).toMatch(/^2026-01-(09|10|11) \d\d:\d\d:00 [+−]\d\d:\d\d$/);
    expect(timeText(Number.NaN)).toBe("no time");
  });

  test("of items have a plural", () => {
    expect([countOf(0, "image"), countOf(1, "image"), countOf(12_345, "image")]).toEqual([
      ...["0 images", "1 image", "12,345 images"],
    ]);
    expect(countOf(2, "branch", "branches")).toBe("2 branches");
  });

  test("ids are distinguished by their random end", () => {
    expect(shortId("01a1f8b3-96a2-74ab-a2b1-0c1fdd6a2b1e")).toBe("dd6a2b1e");
  });
});
