import { isIPv4, isIPv6, type Socket } from "node:net";
import type { Destination } from "../../domain/network.ts";
import { addressBytes } from "../addresses.ts";
import { GateError } from "../gate.ts";
import type { SiteProxy } from "../site-proxy.ts";

/** Longest head of an answer to CONNECT. */
const HEAD_BYTES_MAX = 16_384;
const HEAD_END = "\r\n\r\n";
const SOCKS = { version: 5, connect: 1, noLogin: 0, password: 2, passwordVersion: 1 } as const;
const ADDRESS_TYPE = { ipv4: 1, name: 3, ipv6: 4 } as const;
/** Lengths of an answer up to its address, and of the port after that. */
const SOCKS_HEAD_BYTES = 4;
const PORT_BYTES = 2;

/** The proxy itself, or the login to it, is at fault: no connection through it would work. */
export class ProxyFaultError extends GateError {
  constructor(message: string) {
    super("unreachable", `the site's proxy ${message}`);
  }
}

/** Returns the length of the answer at the start of the bytes; null when it is incomplete. @throws GateError */
type ReadAnswer = (bytes: Buffer) => number | null;

/**
 * Asks a proxy for a connection to a destination. The proxy resolves names.
 * @param socket connected to the proxy, paused
 * @returns the first bytes of the destination, which may have come with the proxy's answer; the socket is paused
 * @throws GateError; the signal's reason
 */
export async function askProxy(
  socket: Socket,
  proxy: SiteProxy,
  destination: Destination,
  signal: AbortSignal,
): Promise<Uint8Array> {
  const conversation = new Conversation(socket, signal);
  if (proxy.kind === "http") {
    socket.write(connectRequest(proxy, destination));
    await conversation.answer(readHttpAnswer);
  } else {
    await socksHandshake(socket, conversation, proxy, destination);
  }
  return conversation.rest;
}

function connectRequest({ credentials }: SiteProxy, { host, port }: Destination): string {
  const target = `${isIPv6(host) ? `[${host}]` : host}:${port}`;
  const login =
    credentials === null
      ? ""
      : `Proxy-Authorization: Basic ${Buffer.from(`${credentials.user}:${credentials.password}`).toString("base64")}\r\n`;
  return `CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n${login}\r\n`;
}

function readHttpAnswer(bytes: Buffer): number | null {
  const start = bytes.subarray(0, 12).toString("latin1");
  if (!"HTTP/1.".startsWith(start.slice(0, 7))) throw new ProxyFaultError("does not speak HTTP");
  const end = bytes.indexOf(HEAD_END);
  if (end < 0) {
    if (bytes.byteLength > HEAD_BYTES_MAX) throw new ProxyFaultError("sends an endless answer");
    return null;
  }
  const status = Number(/^HTTP\/1\.[01] (\d{3})/.exec(start)?.[1]);
  if (status >= 200 && status < 300) return end + HEAD_END.length;
  throw httpFailure(status);
}

function httpFailure(status: number): GateError {
  switch (status) {
    case 407:
      return new ProxyFaultError("does not accept the credentials (407)");
    case 401:
    case 403:
    case 405:
      return new GateError("refused", `the site's proxy refuses the connection (${status})`);
    case 504:
      return new GateError("timed_out", "the destination does not answer the site's proxy (504)");
    default:
      return new GateError("unreachable", `the site's proxy does not reach the destination (${status})`);
  }
}

async function socksHandshake(
  socket: Socket,
  conversation: Conversation,
  { credentials }: SiteProxy,
  destination: Destination,
): Promise<void> {
  const methods = credentials === null ? [SOCKS.noLogin] : [SOCKS.noLogin, SOCKS.password];
  socket.write(Uint8Array.of(SOCKS.version, methods.length, ...methods));
  let method = 0;
  await conversation.answer((bytes) => {
    if (bytes.byteLength > 0 && bytes[0] !== SOCKS.version) throw new ProxyFaultError("does not speak SOCKS 5");
    method = bytes[1] ?? method;
    return bytes.byteLength < 2 ? null : 2;
  });
  if (method === SOCKS.password && credentials !== null) {
    const fields = [credentials.user, credentials.password].map((text) => Buffer.from(text));
    const pieces = fields.flatMap((field) => [Uint8Array.of(field.byteLength), field]);
    socket.write(Buffer.concat([Uint8Array.of(SOCKS.passwordVersion), ...pieces]));
    await conversation.answer((bytes) => {
      if (bytes.byteLength < 2) return null;
      if (bytes[1] !== 0) throw new ProxyFaultError("does not accept the credentials");
      return 2;
    });
  } else if (method !== SOCKS.noLogin) {
    throw new ProxyFaultError("requires another login");
  }
  socket.write(socksRequest(destination));
  await conversation.answer(readSocksAnswer);
}

function socksRequest({ host, port }: Destination): Uint8Array {
  return Buffer.concat([
    Uint8Array.of(SOCKS.version, SOCKS.connect, 0),
    socksAddress(host),
    Uint8Array.of(port >> 8, port & 0xff),
  ]);
}

function socksAddress(host: string): Uint8Array {
  if (isIPv4(host)) return Uint8Array.of(ADDRESS_TYPE.ipv4, ...addressBytes(host));
  if (isIPv6(host)) return Uint8Array.of(ADDRESS_TYPE.ipv6, ...addressBytes(host));
  const name = Buffer.from(host);
  return Buffer.concat([Uint8Array.of(ADDRESS_TYPE.name, name.byteLength), name]);
}

function readSocksAnswer(bytes: Buffer): number | null {
  const [version, code, , type, first] = bytes;
  if (version !== undefined && version !== SOCKS.version) {
    throw new ProxyFaultError("does not speak SOCKS 5");
  }
  if (code !== undefined && code !== 0) throw socksFailure(code);
  if (type === undefined || first === undefined) return null;
  const length = { [ADDRESS_TYPE.ipv4]: 4, [ADDRESS_TYPE.ipv6]: 16, [ADDRESS_TYPE.name]: 1 + first }[type];
  if (length === undefined) throw new ProxyFaultError("does not speak SOCKS 5");
  const end = SOCKS_HEAD_BYTES + length + PORT_BYTES;
  return bytes.byteLength < end ? null : end;
}

function socksFailure(code: number): GateError {
  switch (code) {
    case 2:
      return new GateError("refused", "the site's proxy refuses the connection");
    case 5:
      return new GateError("refused", "the destination refuses the connection");
    case 6:
      return new GateError("timed_out", "the destination does not answer the site's proxy");
    default:
      return new GateError("unreachable", `the site's proxy does not reach the destination (${code})`);
  }
}

/** Reads answers from a socket one after the other. */
class Conversation {
  /** bytes after the last answer */
  rest: Buffer = Buffer.alloc(0);
  readonly #socket: Socket;
  readonly #signal: AbortSignal;

  constructor(socket: Socket, signal: AbortSignal) {
    this.#socket = socket;
    this.#signal = signal;
  }

  async answer(read: ReadAnswer): Promise<void> {
    const length = read(this.rest) ?? (await this.#more(read));
    this.rest = this.rest.subarray(length);
  }

  async #more(read: ReadAnswer): Promise<number> {
    const { promise, resolve, reject } = Promise.withResolvers<number>();
    const closed = (): void => reject(new ProxyFaultError("ends the connection"));
    const onData = (chunk: Buffer): void => {
      this.rest = Buffer.concat([this.rest, chunk]);
      try {
        const length = read(this.rest);
        if (length === null) return;
        this.#socket.pause();
        resolve(length);
      } catch (error) {
        reject(error);
      }
    };
    const onAbort = (): void => reject(this.#signal.reason);
    using _listeners = {
      [Symbol.dispose]: () => {
        this.#signal.removeEventListener("abort", onAbort);
        this.#socket.off("data", onData).off("end", closed).off("error", closed).off("close", closed);
      },
    };
    if (this.#signal.aborted) onAbort();
    this.#signal.addEventListener("abort", onAbort);
    this.#socket.on("data", onData).on("end", closed).on("error", closed).on("close", closed);
    this.#socket.resume();
    return await promise;
  }
}
