import type { Socket } from "node:net";

/** A received request. */
export interface HttpRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: string;
}

/** Reads requests from a connection, one after the other, in the forms that the tests' client sends. */
export function readRequests(socket: Socket, onRequest: (request: HttpRequest) => void): void {
  let bytes = Buffer.alloc(0);
  socket.on("data", (chunk: Buffer) => {
    bytes = Buffer.concat([bytes, chunk]);
    for (let next = parse(bytes); next !== null; next = parse(bytes)) {
      bytes = bytes.subarray(next.lengthBytes);
      onRequest(next.request);
    }
  });
}

function parse(bytes: Buffer): { request: HttpRequest; lengthBytes: number } | null {
  const end = bytes.indexOf("\r\n\r\n");
  if (end < 0) return null;
  const [line = "", ...rest] = bytes.toString("latin1", 0, end).split("\r\n");
  const [method = "", url = ""] = line.split(" ");
  const headers = new Map(
    rest.map((header) => {
      const colon = header.indexOf(":");
      return [header.slice(0, colon).toLowerCase(), header.slice(colon + 1).trim()] as const;
    }),
  );
  const bodyAt = end + 4;
  const lengthBytes = bodyAt + Number(headers.get("content-length") ?? 0);
  if (bytes.byteLength < lengthBytes) return null;
  return { request: { method, url, headers, body: bytes.toString("utf8", bodyAt, lengthBytes) }, lengthBytes };
}

/** An answer in the program's own form (micro_http); without a body, it has no length either. */
export function writeResponse(socket: Socket, status: number, body: unknown): void {
  const text = body === undefined ? "" : JSON.stringify(body);
  const length =
    body === undefined ? "" : `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\n`;
  socket.write(`HTTP/1.1 ${status} \r\nServer: Cloud Hypervisor API\r\nConnection: keep-alive\r\n${length}\r\n${text}`);
}
