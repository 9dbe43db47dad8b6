import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { ApiError } from "../../../src/domain/errors.ts";
import { parseTimeBound } from "../../../src/domain/text/time-bound.ts";

const NOW_MS = Date.UTC(2026, 10, 20, 12, 0, 0);
const parse = (text: string, field: "since" | "until" = "since") => parseTimeBound(text, field, NOW_MS);

const pad = (value: number, length = 2) => String(value).padStart(length, "0");

describe("relative bounds", () => {
  test.each([
    ["0s", 0],
    ["90s", 90_000],
    ["15m", 900_000],
    ["2h", 7_200_000],
    ["3d", 259_200_000],
    ["1w", 604_800_000],
    ["0015m", 900_000],
  ])("%s counts back from now", (text, ms) => {
    expect(parse(text)).toBe(NOW_MS - ms);
  });

  test("any count of any unit is exact", () => {
    const units = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
    void fc.assert(
      fc.property(fc.nat(100_000), fc.constantFrom(...(Object.keys(units) as (keyof typeof units)[])), (n, unit) => {
        expect(parse(`${n}${unit}`)).toBe(NOW_MS - n * units[unit]);
      }),
    );
  });
});

describe("ISO 8601 bounds", () => {
  test.each([
    ["2026-11-20T10:30:00Z", "2026-11-20T10:30:00.000Z"],
    ["2026-11-20t10:30:00z", "2026-11-20T10:30:00.000Z"],
    ["2026-11-20T10:30:00.5Z", "2026-11-20T10:30:00.500Z"],
    ["2026-11-20T10:30:00,25Z", "2026-11-20T10:30:00.250Z"],
    ["2026-11-20T10:30Z", "2026-11-20T10:30:00.000Z"],
    ["2026-11-20", "2026-11-20T00:00:00.000Z"],
    ["2026-11-20T10:30:00", "2026-11-20T10:30:00.000Z"],
    ["2026-11-20 10:30:00", "2026-11-20T10:30:00.000Z"],
    ["2026-11-20T10:30:00+02:00", "2026-11-20T08:30:00.000Z"],
    ["2026-11-20T10:30:00-0530", "2026-11-20T16:00:00.000Z"],
    ["2026-11-20T10:30:00+02", "2026-11-20T08:30:00.000Z"],
    // query decoding turns a plus into a space
    ["2026-11-20T10:30:00 02:00", "2026-11-20T08:30:00.000Z"],
    ["2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000Z"],
    ["0099-01-01T00:00:00Z", "0099-01-01T00:00:00.000Z"],
  ])("%s", (text, iso) => {
    expect(new Date(parse(text)).toISOString()).toBe(iso);
  });

  test("any time, fraction and offset gives the right instant", () => {
    void fc.assert(
      fc.property(
        fc.date({ min: new Date("0001-01-02T00:00:00Z"), max: new Date("9999-12-30T00:00:00Z"), noInvalidDate: true }),
        fc.integer({ min: -23 * 60 - 59, max: 23 * 60 + 59 }),
        fc.constantFrom("+", " "),
        (date, offsetMinutes, plus) => {
          const local = new Date(date.getTime() + offsetMinutes * 60_000);
          const [hours, minutes] = [Math.trunc(Math.abs(offsetMinutes) / 60), Math.abs(offsetMinutes) % 60];
          const offset = `${offsetMinutes < 0 ? "-" : plus}${pad(hours)}:${pad(minutes)}`;
          expect(parse(`${local.toISOString().slice(0, -1)}${offset}`)).toBe(date.getTime());
        },
      ),
    );
  });

  test("fractions below a millisecond round inwards, because both bounds are inclusive", () => {
    expect(parse("2026-11-20T10:30:00.0001Z", "since") % 1000).toBe(1);
    expect(parse("2026-11-20T10:30:00.0009Z", "until") % 1000).toBe(0);
    expect(parse("2026-11-20T10:30:00.001000Z", "since") % 1000).toBe(1);
    expect(parse("2026-11-20T10:30:00.999999999Z", "since") % 1000).toBe(0);
  });
});

describe("other texts", () => {
  test.each([
    "",
    " ",
    "now",
    "15",
    "15M",
    "m",
    "-1h",
    "1.5h",
    "1h30m",
    " 15m",
    "15m ",
    "1e3s",
    "999999999999w",
    "2026-02-30",
    "2026-13-01",
    "2026-00-01",
    "2025-02-29T00:00:00Z",
    "2026-11-20T24:00:00Z",
    "2026-11-20T10:60:00Z",
    "2026-11-20T10:30:61Z",
    "2026-11-20T10:30:00+24:00",
    "2026-11-20T10:30:00.Z",
    "2026-11-20T10:30:00ZZ",
    "2026-11-20Z",
    "20261120T103000Z",
    "1763634600",
    "2026-11-20T10:30:00Z\n",
  ])("%j is refused with a name and a rule", (text) => {
    try {
      parse(text, "until");
      expect.unreachable();
    } catch (error) {
      expect(error).toBeInstanceOf(ApiError);
      expect((error as ApiError).code).toBe("validation_error");
      expect((error as ApiError).message).toStartWith("until must be an ISO 8601 timestamp");
      expect((error as ApiError).details).toEqual({ field: "until" });
    }
  });

  test("every text gives a time or a validation error", () => {
    void fc.assert(
      fc.property(fc.oneof(fc.string(), fc.stringMatching(/^[\d:TZ+. -]{0,30}$/)), (text) => {
        try {
          expect(Number.isSafeInteger(parse(text))).toBe(true);
        } catch (error) {
          expect(error).toBeInstanceOf(ApiError);
        }
      }),
    );
  });
});
