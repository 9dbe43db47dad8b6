/** The reply of a handler, which is the same for GET and HEAD. */
export interface Reply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array> | null;
  /** size of a streamed body in `bytes`, if it is known */
  readonly bodyBytes?: number;
}

export const JSON_TYPE = "application/json; charset=utf-8";
/** An object of JSON in each line. */
export const NDJSON_TYPE = "application/x-ndjson";
export const TEXT_TYPE = "text/plain; charset=utf-8";

/** Replies change between requests and belong to one account, so caches must not store them. */
const NO_STORE = "no-store";

export function json(
  status: number,
  value: unknown,
  headers: Record<string, string> = {},
): Reply & { readonly body: string } {
  return {
    status,
    headers: { "content-type": JSON_TYPE, "cache-control": NO_STORE, ...headers },
    body: JSON.stringify(value),
  };
}

/** A tar archive that a browser stores as `name`, which needs no quoting. */
export function tar(name: string, body: Reply["body"], headers: Record<string, string> = {}): Reply {
  const disposition = `attachment; filename="${name}.tar"`;
  return {
    status: 200,
    headers: {
      "content-type": "application/x-tar",
      "content-disposition": disposition,
      "cache-control": NO_STORE,
      ...headers,
    },
    body,
  };
}

export function empty(status: number, headers: Record<string, string> = {}): Reply {
  return { status, headers: { "cache-control": NO_STORE, ...headers }, body: null };
}

/** The response for a reply. For HEAD it has all headers, including the length, and no body. */
export function respond(reply: Reply, { method }: { readonly method: string }): Response {
  const headers: Record<string, string> = { "x-content-type-options": "nosniff", ...reply.headers };
  if (method !== "HEAD") return new Response(reply.body, { status: reply.status, headers });
  const length = bodyLength(reply);
  if (length !== null) headers["content-length"] = String(length);
  // Bun adds the date to all responses but these.
  headers["date"] = new Date().toUTCString();
  // The stream has no reader, so it must be cancelled to close its files.
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
