import type { ByteRange } from "../domain/bytes/byte-range.ts";

const SINGLE_RANGE = /^bytes=(\d*)-(\d*)$/i;

/**
 * Parses a Range header for a content of `sizeBytes`.
 * @returns the range; `unsatisfiable` when it lies outside the content; null when the whole content must be sent, because
 * the header is missing or malformed, or asks for several ranges
 */
export function parseRange(header: string | null, sizeBytes: number): ByteRange | "unsatisfiable" | null {
  const match = SINGLE_RANGE.exec(header?.replaceAll(/[ \t]/g, "") ?? "");
  const [first, last] = [match?.[1] ?? "", match?.[2] ?? ""];
  if (match === null || (first === "" && last === "")) return null;
  if (first === "") {
    const length = Math.min(Number(last), sizeBytes);
    return length === 0 ? "unsatisfiable" : { start: sizeBytes - length, end: sizeBytes };
  }
  const start = Number(first);
  if (last !== "" && Number(last) < start) return null;
  if (start >= sizeBytes) return "unsatisfiable";
  return { start, end: last === "" ? sizeBytes : Math.min(Number(last) + 1, sizeBytes) };
}

/** True when an If-None-Match header names the tag, by weak comparison, as RFC 9110 requires for this header. */
export function matchesAny(header: string | null, etag: string): boolean {
  if (header === null) return false;
  if (header.trim() === "*") return true;
  return header.split(",").some((candidate) => candidate.trim().replace(/^W\//, "") === etag);
}
