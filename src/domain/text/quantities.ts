/*
 * Sizes and durations as people write them, in settings, on the command line and on the page: a number that may have a
 * fraction, and a unit in upper or lower case.
 */

/** Powers of 1024, also where the unit is written as `M`, `MB` or `MiB`. */
const BYTES_OF_UNIT: Readonly<Record<string, number>> = {
  "": 1,
  k: 1024,
  m: 1_048_576,
  g: 1_073_741_824,
  t: 1_099_511_627_776,
};
const MS_OF_UNIT: Readonly<Record<string, number>> = {
  "": 1000,
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 604_800_000,
};

/** Completes "KEY must be …". */
export const SIZE_FORM = "a size such as 512M, 512MiB or 2G, or a number of bytes";
/** Completes "KEY must be …". */
export const DURATION_FORM = "a duration such as 90s, 30m, 2h or 7d, or a number of seconds";

/** `bytes` of a size such as `512M`, `512MiB` or `1.5 G`; a number alone is bytes. Null for any other text. */
export function bytesOfSize(text: string): number | null {
  return quantity(text, /^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/i, BYTES_OF_UNIT);
}

/** `milliseconds` of a duration such as `60`, `90s` or `7d`; a number alone is seconds. Null for any other text. */
export function msOfDuration(text: string): number | null {
  return quantity(text, /^(\d+(?:\.\d+)?)\s*(ms|[smhdw]?)$/i, MS_OF_UNIT);
}

/** The `seconds` of {@link msOfDuration}, rounded. */
export function secondsOfDuration(text: string): number | null {
  const ms = msOfDuration(text);
  return ms === null ? null : Math.round(ms / 1000);
}

function quantity(text: string, form: RegExp, units: Readonly<Record<string, number>>): number | null {
  const [, number, unit = ""] = form.exec(text.trim()) ?? [];
  if (number === undefined) return null;
  const value = Math.round(Number(number) * (units[unit.toLowerCase()] ?? 1));
  return Number.isSafeInteger(value) ? value : null;
}

/** The shortest exact text for a size in `bytes`, which {@link bytesOfSize} reads. */
export function sizeText(bytes: number): string {
  return shortest(bytes, BYTES_OF_UNIT).toUpperCase();
}

/** The shortest exact text for a duration in `seconds`, which {@link secondsOfDuration} reads. */
export function durationText(seconds: number): string {
  return shortest(seconds, { "": 1, s: 1, m: 60, h: 3600, d: 86_400 });
}

function shortest(value: number, units: Readonly<Record<string, number>>): string {
  const [unit = "", factor = 1] =
    Object.entries(units).findLast(([, size]) => value >= size && value % size === 0) ?? [];
  return `${value / factor}${unit}`;
}
