import type { Socket } from "bun";
import type { ToolNetwork } from "../../system/tool-network.ts";
import { addressText } from "../addresses.ts";
import { type GateConnection, GateError } from "../gate.ts";
import { listenToRelay } from "./listener.ts";
import { type End, join } from "./relay.ts";

/** Address of the proxy in the network for tools. Every other loopback address there may be a forwarded one. */
const PROXY_ADDRESS = "127.255.0.1";

const VERSION = 5;
const METHOD = { noLogin: 0 } as const;
const COMMAND = { connect: 1 } as const;
const ADDRESS_TYPE = { ipv4: 1, name: 3, ipv6: 4 } as const;
const REPLY = { done: 0, notAllowed: 2, noHost: 4, refused: 5 } as const;
const HEAD_BYTES = 4;
const PORT_BYTES = 2;

/** A connection that a program requested and did not get. */
export interface FailedConnection {
  /** host name or address, with the port */
  readonly host: string;
  /** the error of `SocksOptions.connect` */
  readonly error: unknown;
}

export interface SocksOptions {
  readonly network: ToolNetwork;
  /** Connects to `host`, a name or an address with the port. Rejects to refuse the connection. */
  readonly connect: (host: string) => Promise<GateConnection>;
  readonly onFailure: (failure: FailedConnection) => void;
}

/** A SOCKS 5 proxy. Disposal closes all of its connections. */
export interface SocksProxy extends Disposable {
  readonly url: string;
}

interface Session {
  received: Uint8Array;
  greeted: boolean;
  /** the request is complete; the client must wait for the answer */
  asked: boolean;
}

/**
 * Listens in the network for tools. Names are resolved where the connection is made, so that a name cannot change its
 * meaning in between.
 */
export function openSocksProxy(options: SocksOptions): SocksProxy {
  const negotiate = (socket: Socket<End>, chunk: Uint8Array, session: Session): void => {
    if (session.asked) return void socket.terminate();
    session.received = Buffer.concat([session.received, chunk]);
    if (!session.greeted) {
      const rest = readGreeting(session.received);
      if (rest === null) return;
      if (rest === "malformed") return void socket.terminate();
      session.greeted = true;
      session.received = rest;
      socket.write(Uint8Array.of(VERSION, METHOD.noLogin));
    }
    const target = readRequest(session.received);
    if (target === null) return;
    if (target === "malformed") return void socket.terminate();
    // Clients must wait for the answer before they send data.
    session.asked = true;
    socket.pause();
    void connect(socket, target.host);
  };

  const connect = async (socket: Socket<End>, host: string): Promise<void> => {
    try {
      const peer = await options.connect(host);
      if (socket.data.closed) return void peer.reset();
      socket.write(reply(REPLY.done));
      void join(socket, peer);
    } catch (error) {
      options.onFailure({ host, error });
      socket.end(reply(replyTo(error)));
    }
  };

  const listener = listenToRelay(options.network, {
    hostname: PROXY_ADDRESS,
    port: 0,
    begin: () => {
      const session: Session = { received: new Uint8Array(0), greeted: false, asked: false };
      return (socket, chunk) => negotiate(socket, chunk, session);
    },
  });
  return {
    url: `socks5://${PROXY_ADDRESS}:${listener.port}`,
    [Symbol.dispose]: () => listener[Symbol.dispose](),
  };
}

/** The bytes after the greeting; null when it is incomplete. */
function readGreeting(bytes: Uint8Array): Uint8Array | null | "malformed" {
  if (bytes.byteLength > 0 && bytes[0] !== VERSION) return "malformed";
  const methods = bytes[1];
  if (methods === undefined || bytes.byteLength < 2 + methods) return null;
  return bytes.subarray(2, 2 + methods).includes(METHOD.noLogin) ? bytes.subarray(2 + methods) : "malformed";
}

/** The requested host with the port; null when the request is incomplete. */
function readRequest(bytes: Uint8Array): { readonly host: string } | null | "malformed" {
  const request = Buffer.from(bytes);
  if (request.byteLength <= HEAD_BYTES) return null;
  const [version, command, , type] = request;
  if (version !== VERSION || command !== COMMAND.connect) return "malformed";
  const length = { [ADDRESS_TYPE.ipv4]: 4, [ADDRESS_TYPE.ipv6]: 16, [ADDRESS_TYPE.name]: request[HEAD_BYTES] }[
    type ?? 0
  ];
  if (length === undefined) return "malformed";
  const start = type === ADDRESS_TYPE.name ? HEAD_BYTES + 1 : HEAD_BYTES;
  const end = start + length;
  if (request.byteLength < end + PORT_BYTES) return null;
  if (request.byteLength > end + PORT_BYTES) return "malformed";
  const port = request.readUInt16BE(end);
  return { host: `${hostText(type, request.subarray(start, end))}:${port}` };
}

function hostText(type: number | undefined, bytes: Buffer): string {
  if (type === ADDRESS_TYPE.name) return bytes.toString("latin1");
  return type === ADDRESS_TYPE.ipv4 ? addressText(bytes) : `[${addressText(bytes)}]`;
}

function replyTo(error: unknown): number {
  if (!(error instanceof GateError)) return REPLY.notAllowed;
  return error.verdict === "refused" ? REPLY.refused : REPLY.noHost;
}

/** The answer does not reveal the address that the proxy connects from. */
function reply(code: number): Uint8Array {
  return Uint8Array.of(VERSION, code, 0, ADDRESS_TYPE.ipv4, 0, 0, 0, 0, 0, 0);
}
