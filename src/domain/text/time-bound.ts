import { ApiError } from "../errors.ts";
import { msOfDuration } from "./quantities.ts";

/** The end of a time range. Both ends are inclusive, so fractions of a millisecond round inwards. */
export type TimeBoundField = "since" | "until";

/** Largest time that a Date can hold, in `milliseconds` on either side of the epoch. */
const TIME_MS_MAX = 8_640_000_000_000_000;

/** A duration with a unit: a number alone could as well be a time. */
const RELATIVE = /^\d{1,12}[smhdw]$/;
/** A date, or date and time. A space before the offset is a "+" that was decoded as part of a query. */
const ABSOLUTE =
  /^(\d{4})-(\d{2})-(\d{2})(?:[Tt ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,18}))?)?(?:([Zz])|([+\- ])(\d{2})(?::?(\d{2}))?)?)?$/;

export const TIME_BOUND_FORMS =
  "an ISO 8601 timestamp such as 2026-11-20T10:30:00Z or a relative value such as 15m, 2h, 3d (units s m h d w)";

/**
 * Parses a bound of creation times. A timestamp without an offset is UTC; a relative value counts back from `nowMs`.
 * @returns `milliseconds` since the epoch
 * @throws ApiError `validation_error`
 */
export function parseTimeBound(text: string, field: TimeBoundField, nowMs: number): number {
  const time = relativeTime(text, nowMs) ?? absoluteTime(text, field);
  if (time === null || Math.abs(time) > TIME_MS_MAX) {
    throw new ApiError("validation_error", `${field} must be ${TIME_BOUND_FORMS}`, { field });
  }
  return time;
}

/** Parses both bounds of a query; the results are `milliseconds` since the epoch. @throws as `parseTimeBound` does */
export function timeBounds(
  query: { readonly since?: string | undefined; readonly until?: string | undefined },
  nowMs: number,
): { readonly sinceMs: number | undefined; readonly untilMs: number | undefined } {
  return {
    sinceMs: query.since === undefined ? undefined : parseTimeBound(query.since, "since", nowMs),
    untilMs: query.until === undefined ? undefined : parseTimeBound(query.until, "until", nowMs),
  };
}

function relativeTime(text: string, nowMs: number): number | null {
  const ms = RELATIVE.test(text) ? msOfDuration(text) : null;
  return ms === null ? null : nowMs - ms;
}

function absoluteTime(text: string, field: TimeBoundField): number | null {
  const match = ABSOLUTE.exec(text);
  if (match === null) return null;
  const part = (index: number): number => Number(match[index] ?? 0);
  const [year, month, day, hour, minute, second] = [part(1), part(2), part(3), part(4), part(5), part(6)];
  const [offsetHours, offsetMinutes] = [part(10), part(11)];
  if (hour > 23 || minute > 59 || second > 59 || offsetHours > 23 || offsetMinutes > 59) return null;
  const date = new Date(0);
  date.setUTCFullYear(year, month - 1, day);
  if (date.getUTCMonth() !== month - 1 || date.getUTCDate() !== day) return null;
  const offsetMs = (offsetHours * 60 + offsetMinutes) * 60_000 * (match[9] === "-" ? -1 : 1);
  return date.getTime() + hour * 3_600_000 + minute * 60_000 + second * 1000 - offsetMs + fractionMs(match[7], field);
}

function fractionMs(digits: string | undefined, field: TimeBoundField): number {
  if (digits === undefined) return 0;
  const whole = Number(digits.slice(0, 3).padEnd(3, "0"));
  return field === "since" && /[1-9]/.test(digits.slice(3)) ? whole + 1 : whole;
}
