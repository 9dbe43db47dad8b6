/* Quantities as people write them: `512M`, `1.5G`, `15m`. */

const BYTES_OF_UNIT: Readonly<Record<string, number>> = {
  "": 1,
  k: 1024,
  m: 1_048_576,
  g: 1_073_741_824,
  t: 1_099_511_627_776,
};
const SECONDS_OF_UNIT: Readonly<Record<string, number>> = { "": 1, s: 1, m: 60, h: 3600, d: 86_400 };

/** Bytes of a size such as `512M` or `2 GiB`: powers of 1024; a number alone is bytes. Null for any other text. */
export function bytesOfSize(text: string): number | null {
  return quantity(text, /^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/i, BYTES_OF_UNIT);
}

/** Seconds of a duration such as `90`, `15m` or `2h`. Null for any other text. */
export function secondsOfDuration(text: string): number | null {
  return quantity(text, /^(\d+(?:\.\d+)?)\s*([smhd]?)$/i, SECONDS_OF_UNIT);
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
  return shortest(seconds, SECONDS_OF_UNIT);
}

function shortest(value: number, units: Readonly<Record<string, number>>): string {
  const [unit = "", factor = 1] =
    Object.entries(units).findLast(([, size]) => value >= size && value % size === 0) ?? [];
  return `${value / factor}${unit}`;
}
