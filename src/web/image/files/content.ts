import { request } from "../../data/api.ts";
import { Problem, problemOf } from "../../data/problem.ts";
import type { EncodedPath } from "../paths.ts";

/** Size of a part of a text, in `bytes`. */
export const TEXT_BYTES_MAX = 1_048_576;
/** Bytes at the beginning of a file that decide its kind: a NUL among them makes it binary, as for grep. */
const PROBE_BYTES = 8192;

/** A part of a file. */
export interface FilePart {
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** size of the whole file, in `bytes` */
  readonly size: number;
}

/** Path below the origin, for {@link request} and `addressOf`. */
export function contentPath(
  image: string,
  path: EncodedPath,
  what: "download" | "archive" | "list" = "download",
): string {
  return `/v1/inspect/${encodeURIComponent(image)}/${what}?path=${path}`;
}

/**
 * The bytes from `start` on, up to `count` of them; none after the end of the file.
 * @throws Problem; the reason of the signal
 */
export async function readPart(
  { image, path }: { readonly image: string; readonly path: EncodedPath },
  { start, count }: { readonly start: number; readonly count: number },
  signal: AbortSignal,
): Promise<FilePart> {
  const headers = { range: `bytes=${start}-${start + count - 1}` };
  try {
    const response = await request(contentPath(image, path), { headers, signal });
    const bytes = new Uint8Array(await response.arrayBuffer());
    const total = /\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1];
    return { bytes, size: total === undefined ? bytes.byteLength : Number(total) };
  } catch (error) {
    const { code, details } = problemOf(error);
    const size = details["size_bytes"];
    if (code === "range_not_satisfiable" && typeof size === "number") return { bytes: new Uint8Array(0), size };
    throw error;
  }
}

/** All bytes of a file. @throws Problem when it is larger than `bytesMax`; as {@link readPart} */
export async function readWhole(
  file: { readonly image: string; readonly path: EncodedPath },
  bytesMax: number,
  signal: AbortSignal,
): Promise<Uint8Array<ArrayBuffer>> {
  const { bytes, size } = await readPart(file, { start: 0, count: bytesMax }, signal);
  if (size > bytes.byteLength) throw new Problem("The file is too large to be shown.", { code: "page" });
  return bytes;
}

/** Whether the beginning of a file is that of a text. */
export function isText(bytes: Uint8Array): boolean {
  const hasMark = (bytes[0] === 0xff && bytes[1] === 0xfe) || (bytes[0] === 0xfe && bytes[1] === 0xff);
  return hasMark || !bytes.subarray(0, PROBE_BYTES).includes(0);
}
