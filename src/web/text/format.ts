/** Figures as text, in English, with a point before decimals. */

import { printable } from "./printable.ts";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

/** @param bytes such as 1536 -> "1.5 KiB" */
export function bytesText(bytes: number): string {
  let value = Math.abs(bytes);
  let unit = 0;
  // 1023.96 would be written as 1024.
  while (value >= 1023.95 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const figure = unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1);
  return `${bytes < 0 ? "−" : ""}${figure} ${UNITS[unit]}`;
}

/** @param value such as 12345 -> "12,345" */
export function countText(value: number): string {
  return value.toLocaleString("en-US");
}

/** @param value and a noun: (1, "image") -> "1 image"; (3, "image") -> "3 images" */
export function countOf(value: number, one: string, many = `${one}s`): string {
  return `${countText(value)} ${value === 1 ? one : many}`;
}

/** A length of time, in two units at most: 950 -> "950 ms", 61_000 -> "1 min 1 s". */
export function durationText(milliseconds: number): string {
  const time = Math.max(0, milliseconds);
  if (time < 999.5) return `${Math.round(time)} ms`;
  if (time < 9_950) return `${(time / 1000).toFixed(1)} s`;
  const seconds = Math.round(time / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return pair(seconds, 60, "min", "s");
  const minutes = Math.round(time / 60_000);
  if (minutes < 1440) return pair(minutes, 60, "h", "min");
  return pair(Math.round(time / 3_600_000), 24, "d", "h");
}

function pair(value: number, per: number, large: string, small: string): string {
  const rest = value % per;
  return rest === 0 ? `${Math.floor(value / per)} ${large}` : `${Math.floor(value / per)} ${large} ${rest} ${small}`;
}

/** How long ago something happened, in one unit: "just now", "5 min ago", "3 d ago"; a time to come: "in 5 min". */
export function ageText(at: number, now: number): string {
  const seconds = Math.round(Math.abs(now - at) / 1000);
  if (seconds < 10) return "just now";
  const text = rough(seconds);
  return at > now ? `in ${text}` : `${text} ago`;
}

function rough(seconds: number): string {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  if (seconds < 86_400 * 60) return `${Math.floor(seconds / 86_400)} d`;
  if (seconds < 86_400 * 730) return `${Math.floor(seconds / (86_400 * 30.44))} months`;
  return `${Math.floor(seconds / (86_400 * 365.25))} years`;
}

/** The exact local time: "2026-11-22 19:24:14 +01:00". */
export function timeText(at: number): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "no time";
  const offset = -date.getTimezoneOffset();
  const local = new Date(at + offset * 60_000).toISOString();
  const two = (value: number) => String(Math.floor(value)).padStart(2, "0");
  const zone = `${offset < 0 ? "−" : "+"}${two(Math.abs(offset) / 60)}:${two(Math.abs(offset) % 60)}`;
  return `${local.slice(0, 10)} ${local.slice(11, 19)} ${zone}`;
}

/**
 * A short form of a uuid: characters of the random part, because uuids begin with the time. A link may hold any other text in
 * its place, so invisible characters are escaped.
 */
export function shortId(uuid: string): string {
  return printable(uuid.slice(-8));
}
