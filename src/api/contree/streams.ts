import { ApiError } from "../../domain/errors.ts";
import { STDIN_BASE64_PREFIX } from "../../domain/instance.ts";
import { decodeContent } from "../../domain/tree/content.ts";
import type { Output } from "../../service/running/outputs.ts";
import type { LongText } from "../output/json-stream.ts";
import type { SentOutputs } from "../output/sent-outputs.ts";

/** Bytes that are sent as they are: printable ASCII, tab, line feed and carriage return. */
const IS_PLAIN = Uint8Array.from({ length: 256 }, (_, byte) =>
  (byte >= 0x20 && byte < 0x7f) || byte === 0x09 || byte === 0x0a || byte === 0x0d ? 1 : 0,
);

/** True when bytes can be sent with the encoding `ascii` of this dialect. */
export function isPlain(bytes: Uint8Array): boolean {
  for (let index = 0; index < bytes.byteLength; index++) if (IS_PLAIN[bytes[index] ?? 0] === 0) return false;
  return true;
}

/** Captured bytes of a stream. The value of a long one is read while it is sent. */
export interface SentStream {
  readonly value: string | LongText;
  readonly encoding: "ascii" | "base64";
  readonly truncated: boolean;
}

/** The wire form of captured bytes. */
export function streamOf(bytes: Uint8Array, truncated: boolean): SentStream {
  const encoding = isPlain(bytes) ? "ascii" : "base64";
  const value = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString(
    encoding === "ascii" ? "latin1" : "base64",
  );
  return { value, encoding, truncated };
}

/** The wire form of an output, which `outputs` holds open until the reply is sent. */
export async function sentStream(outputs: SentOutputs, output: Output, truncated: boolean): Promise<SentStream> {
  if (output.kind === "short") return streamOf(output.bytes, truncated);
  const { text, encoding } = await outputs.addLong(output, isPlain);
  return { value: text, encoding, truncated };
}

/** Standard input on the wire. */
export interface Input {
  readonly value: string;
  readonly encoding?: "ascii" | "base64" | null | undefined;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: NUL is ASCII like any other character here.
const ASCII = /^[\x00-\x7f]*$/;

/**
 * The bytes of standard input. Some clients send other text as `ascii`, too: it is read as UTF-8.
 * @throws ApiError `validation_error`
 */
export function inputBytes({ value, encoding }: Input, field: string): Uint8Array {
  if (encoding === "base64") return decodeContent({ content: value, encoding }, field);
  if (value.isWellFormed()) return Buffer.from(value, "utf8");
  throw new ApiError("validation_error", `${field} must be valid Unicode, or base64 with encoding`, { field });
}

/**
 * The same in the form of a command's field: ASCII, or base64 after a prefix, which is validated with the command.
 * @throws ApiError `validation_error`
 */
export function inputText(input: Input): string {
  const { value, encoding } = input;
  if (value === "") return "";
  if (encoding === "base64") return STDIN_BASE64_PREFIX + value;
  if (ASCII.test(value) && !value.startsWith(STDIN_BASE64_PREFIX)) return value;
  return STDIN_BASE64_PREFIX + Buffer.from(inputBytes(input, "stdin.value")).toString("base64");
}
