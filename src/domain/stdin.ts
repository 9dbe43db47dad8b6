import { ApiError } from "./errors.ts";
import { STDIN_BASE64_PREFIX } from "./instance.ts";

/** Decodes standard input that `checkStdin` has accepted: plain ASCII, or `base64:` followed by standard base64. */
export function decodeStdin(text: string): Uint8Array {
  if (!text.startsWith(STDIN_BASE64_PREFIX)) return Buffer.from(text, "latin1");
  return Buffer.from(text.slice(STDIN_BASE64_PREFIX.length), "base64");
}

/** The same as a stream, which decodes when it is read. */
export async function* decodedStdin(text: string): AsyncGenerator<Uint8Array, void, undefined> {
  yield decodeStdin(text);
}

/** Size of its bytes. */
export function stdinBytes(text: string): number {
  if (!text.startsWith(STDIN_BASE64_PREFIX)) return text.length;
  return Buffer.byteLength(text.slice(STDIN_BASE64_PREFIX.length), "base64");
}

/** Validates standard input without decoding it, because it can be large. @throws ApiError `validation_error` */
export function checkStdin(text: string, bytesMax: number): void {
  const fail = (rule: string): never => {
    throw new ApiError("validation_error", `stdin ${rule}`, { field: "stdin" });
  };
  if (!text.startsWith(STDIN_BASE64_PREFIX)) {
    // biome-ignore lint/suspicious/noControlCharactersInRegex: NUL is ASCII like any other character here.
    if (!/^[\x00-\x7f]*$/.test(text)) fail("must be plain ASCII, or base64: followed by standard base64");
    if (text.length > bytesMax) fail(`must be at most ${bytesMax} bytes`);
    return;
  }
  const encoded = text.slice(STDIN_BASE64_PREFIX.length);
  if (encoded.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(encoded)) {
    fail("must have standard base64 with padding after base64:");
  }
  const tail = encoded.slice(-4);
  const tailBytes = Buffer.from(tail, "base64");
  if (tailBytes.toString("base64") !== tail) fail("has base64 whose unused bits are not zero");
  const sizeBytes = (encoded.length - tail.length) * BASE64_BYTES_RATIO + tailBytes.byteLength;
  if (sizeBytes > bytesMax) fail(`must be at most ${bytesMax} bytes after decoding`);
}

/** Bytes for each character of base64. */
const BASE64_BYTES_RATIO = 3 / 4;
