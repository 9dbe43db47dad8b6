/** What a handler answers, before it is known whether the method was HEAD. */
export interface Reply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array> | null;
  /** size of a streamed body in `bytes`, when it is known beforehand */
  readonly bodyBytes?: number;
}

export const JSON_TYPE = "application/json; charset=utf-8";
export const TEXT_TYPE = "text/plain; charset=utf-8";

/** Answers of the interface change from one request to the next, and belong to one account. */
const NO_STORE = "no-store";

export function json(status: number, value: unknown, headers: Record<string, string> = {}): Reply {
  return {
    status,
    headers: { "content-type": JSON_TYPE, "cache-control": NO_STORE, ...headers },
    body: JSON.stringify(value),
  };
}

export function empty(status: number, headers: Record<string, string> = {}): Reply {
  return { status, headers: { "cache-control": NO_STORE, ...headers }, body: null };
}

/** A response of the server; HEAD keeps every header, the length too, and drops the body. */
export function respond(reply: Reply, { method }: { readonly method: string }): Response {
  const headers: Record<string, string> = { "x-content-type-options": "nosniff", ...reply.headers };
  if (method !== "HEAD") return new Response(reply.body, { status: reply.status, headers });
  const length = bodyLength(reply);
  if (length !== null) headers["content-length"] = String(length);
  // The server itself dates every answer but these.
  headers["date"] = new Date().toUTCString();
  // Nobody reads the stream, so nothing may keep its file open.
  if (reply.body instanceof ReadableStream) void reply.body.cancel().catch(() => undefined);
  return new Response(null, { status: reply.status, headers });
}

function bodyLength(reply: Reply): number | null {
  if (reply.bodyBytes !== undefined) return reply.bodyBytes;
  const { body } = reply;
  if (body === null) return 0;
  if (typeof body === "string") return Buffer.byteLength(body);
  if (body instanceof Uint8Array) return body.byteLength;
  return body instanceof Blob ? body.size : null;
}
