/** Longest message that the appliance accepts, in `bytes`. */
export const MESSAGE_BYTES_MAX = 2_097_152;

const NEWLINE = 0x0a;

/**
 * The lines of a stream, each of which is a message; empty ones are skipped. Null stands for one that is too long: it is not
 * kept in memory.
 */
export async function* messagesOf(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<string | null, void, undefined> {
  let parts: Uint8Array[] = [];
  let bytes = 0;
  const take = (part: Uint8Array): void => {
    bytes += part.byteLength;
    if (bytes > MESSAGE_BYTES_MAX) parts = [];
    // A chunk of standard input may be reused. The `slice` of a Buffer would not copy.
    else parts.push(Buffer.from(part));
  };
  const line = (): string | null => {
    const whole = bytes > MESSAGE_BYTES_MAX ? null : Buffer.concat(parts).toString("utf8").trim();
    parts = [];
    bytes = 0;
    return whole;
  };
  for await (const chunk of chunks) {
    let rest = chunk;
    for (let end = rest.indexOf(NEWLINE); end !== -1; end = rest.indexOf(NEWLINE)) {
      take(rest.subarray(0, end));
      rest = rest.subarray(end + 1);
      const text = line();
      if (text !== "") yield text;
    }
    take(rest);
  }
  const last = line();
  if (last !== "") yield last;
}

export type MessageId = string | number;

/** A message as the bridge sees it. */
export interface Message {
  /** a text, if the client follows the protocol */
  readonly method?: unknown;
  /** absent in a notification */
  readonly id?: MessageId;
  readonly params?: Readonly<Record<string, unknown>>;
  readonly result?: Readonly<Record<string, unknown>>;
  readonly error?: unknown;
}

/** The message in a text; null for any other text. */
export function parseMessage(text: string): Message | null {
  try {
    const value = JSON.parse(text) as unknown;
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Message) : null;
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof RangeError) return null;
    throw error;
  }
}

export function idOf({ id }: Message): MessageId | null {
  return typeof id === "string" || typeof id === "number" ? id : null;
}

const VERSION_KEY = "io.modelcontextprotocol/protocolVersion";
/** The parameter that a header repeats, by method. */
const NAMED_BY: Readonly<Record<string, string>> = {
  "tools/call": "name",
  "prompts/get": "name",
  "resources/read": "uri",
};

/**
 * Headers that the protocol of 2026 requires over HTTP, so that proxies need not read bodies. The message of an older
 * protocol has no version, and needs none of them.
 */
export function standardHeaders({ method, params }: Message): Record<string, string> {
  if (typeof method !== "string") return {};
  const version = (params?.["_meta"] as Record<string, unknown> | undefined)?.[VERSION_KEY];
  if (typeof version !== "string") return {};
  const field = Object.hasOwn(NAMED_BY, method) ? (NAMED_BY[method] ?? "") : "";
  const name = params?.[field];
  return {
    "mcp-protocol-version": headerText(version),
    "mcp-method": headerText(method),
    ...(typeof name === "string" ? { "mcp-name": headerText(name) } : {}),
  };
}

/** A value that a header cannot have is in base64 between marks. */
function headerText(value: string): string {
  const isPlain = /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(value) && !value.startsWith("=?base64?");
  return isPlain ? value : `=?base64?${Buffer.from(value, "utf8").toString("base64")}?=`;
}
