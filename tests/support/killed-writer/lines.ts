/** The process whose output `program.ts` writes. */
export const SPID = 2;
export const LINE_BYTES = 16;

/** A part of an endless stream of numbered lines, from an offset in `bytes`. */
export function linesFrom(offset: number, bytes: number): Uint8Array {
  const first = Math.floor(offset / LINE_BYTES);
  const count = Math.ceil((offset + bytes) / LINE_BYTES) - first;
  const text = Array.from({ length: count }, (_, at) => `${String(first + at).padStart(LINE_BYTES - 1, "0")}\n`);
  const skipped = offset - first * LINE_BYTES;
  return Buffer.from(text.join(""), "latin1").subarray(skipped, skipped + bytes);
}
