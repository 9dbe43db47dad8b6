import { ApiError } from "../errors.ts";

/** The wire form of bytes. */
export interface EncodedContent {
  readonly content: string;
  readonly encoding?: "ascii" | "base64" | undefined;
}

/**
 * Decodes bytes of the wire.
 * @param field name of the content in messages
 * @throws ApiError `validation_error` when the content does not fit the encoding
 */
export function decodeContent({ content, encoding = "ascii" }: EncodedContent, field = "content"): Uint8Array {
  const bytes = Buffer.from(content, encoding === "ascii" ? "latin1" : "base64");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: NUL is ASCII like any other character here.
  const isWhole = encoding === "ascii" ? /^[\x00-\x7f]*$/.test(content) : bytes.toString("base64") === content;
  if (isWhole) return bytes;
  const rule = encoding === "ascii" ? "plain ASCII, or base64 with encoding" : "standard base64 with padding";
  throw new ApiError("validation_error", `${field} must be ${rule}`, { field });
}
