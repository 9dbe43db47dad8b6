import { connect, createServer, type Server, type Socket } from "node:net";
import { ApiError } from "../../../src/domain/errors.ts";
import { answer } from "../../../src/ingress/answers.ts";
import { IngressListener, type IngressOptions } from "../../../src/ingress/listener.ts";
import type { GuestConnection, Upstream, Visit } from "../../../src/ingress/upstream.ts";
import { silentLog } from "../../../src/log.ts";
import { until } from "../waiting.ts";

/** The server side of a guest's connection, with the bytes that it received. */
export interface Guest {
  readonly socket: Socket;
  text: string;
  /** for tests of tunnels */
  switched?: boolean;
}

/** An ingress whose guests are TCP servers of the test; disposal closes everything. */
export class IngressScene implements AsyncDisposable {
  readonly listener: IngressListener;
  /** requests that were passed or refused, in order */
  readonly visits: Visit[] = [];
  /** connections to guests that are open */
  connectionsCount = 0;
  readonly #guests = new Map<string, number>();
  readonly #servers: Server[] = [];
  readonly #peers: Peer[] = [];

  constructor(options: Partial<IngressOptions> = {}) {
    const upstream: Upstream = { decide: async (visit) => this.#decide(visit) };
    this.listener = new IngressListener({
      host: "127.0.0.1",
      port: 0,
      isBehindProxy: false,
      upstream,
      log: silentLog,
      ...options,
    });
  }

  /** Starts a guest at `host`, which gets the bytes of each connection in `guest.text` before `onData`. */
  async guest(host: string, onData: (guest: Guest) => void): Promise<void> {
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      const guest: Guest = { socket, text: "" };
      socket.on("error", () => undefined);
      socket.on("data", (bytes) => {
        guest.text += bytes.toString("latin1");
        onData(guest);
      });
    });
    this.#servers.push(server);
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    this.#guests.set(host, (server.address() as { port: number }).port);
  }

  /** Starts a guest at `host` that answers each request without a body with the same bytes, and then ends. */
  async answering(host: string, bytes: string | Buffer): Promise<void> {
    await this.guest(host, ({ socket, text }) => {
      if (text.includes("\r\n\r\n")) socket.end(typeof bytes === "string" ? Buffer.from(bytes, "latin1") : bytes);
    });
  }

  /** Makes a server of the test, which listens on 127.0.0.1, the guest at `host`. */
  serve(host: string, port: number): void {
    this.#guests.set(host, port);
  }

  /** Stops a guest: its port is no longer open. */
  async closeGuest(host: string): Promise<void> {
    const port = this.#guests.get(host);
    const server = this.#servers.find((one) => (one.address() as { port: number } | null)?.port === port);
    await new Promise<void>((resolve) => server?.close(() => resolve()));
  }

  async client(): Promise<Peer> {
    const peer = await Peer.connect(this.listener.port);
    this.#peers.push(peer);
    return peer;
  }

  /** Sends bytes on a connection of its own; resolves to everything that is received up to its end. */
  async ask(bytes: string): Promise<string> {
    const peer = await this.client();
    peer.send(bytes);
    await peer.closed;
    return peer.text;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const peer of this.#peers) peer.socket.destroy();
    await this.listener.stop(0);
    for (const server of this.#servers) server.close();
  }

  #decide(visit: Visit) {
    this.visits.push(visit);
    if (!this.#guests.has(visit.host)) return answer(404, "no sandbox has this address");
    return { head: visit.head, cookies: new Set(["reserved"]), connect: () => this.connect(visit.host) };
  }

  /** Connects to the guest at `host`. @throws ApiError as the `dial` of an instance does */
  async connect(host: string): Promise<Disposable & { readonly connection: GuestConnection }> {
    const port = this.#guests.get(host) ?? 0;
    const socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    socket.once("connect", resolve).once("error", () => reject(closedPort(port)));
    await promise;
    this.connectionsCount++;
    socket.on("error", () => undefined).on("close", () => this.connectionsCount--);
    return { connection: guestConnection(socket), [Symbol.dispose]: () => void socket.destroy() };
  }
}

/** The error of an instance where nothing listens on a port. */
function closedPort(port: number): ApiError {
  const message = `port ${port} of the instance did not accept a connection: refused`;
  return new ApiError("conflict", message, { port, reason: "refused" });
}

function guestConnection(socket: Socket): GuestConnection {
  return {
    async *chunks() {
      for await (const chunk of socket) yield chunk as Buffer;
    },
    write: async (bytes) => {
      if (socket.destroyed || !socket.writable) return false;
      if (socket.write(bytes)) return true;
      return await new Promise<boolean>((resolve) => {
        socket.once("drain", () => resolve(true)).once("close", () => resolve(false));
      });
    },
    end: async () => void socket.end(),
    reset: () => void socket.destroy(),
  };
}

/** A raw client. */
export class Peer {
  readonly socket: Socket;
  /** everything that was received, as Latin-1 */
  text = "";
  /** resolves when the server has ended the connection */
  readonly closed: Promise<void>;

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on("data", (bytes) => {
      this.text += bytes.toString("latin1");
    });
    socket.on("error", () => undefined);
    this.closed = new Promise((resolve) => socket.once("close", () => resolve()));
  }

  static async connect(port: number): Promise<Peer> {
    const socket = connect({ port, host: "127.0.0.1" });
    await new Promise<void>((resolve, reject) => socket.once("connect", resolve).once("error", reject));
    return new Peer(socket);
  }

  send(bytes: string | Buffer): void {
    this.socket.write(typeof bytes === "string" ? Buffer.from(bytes, "latin1") : bytes);
  }

  async until(what: string | RegExp): Promise<void> {
    const holds = () => (typeof what === "string" ? this.text.includes(what) : what.test(this.text));
    await until(`the client receives ${what}`, holds, 10_000);
  }
}

/** A GET of a host's `/`. */
export function get(host: string, ...fields: readonly string[]): string {
  return ["GET / HTTP/1.1", `Host: ${host}`, ...fields, "", ""].join("\r\n");
}

/** An answer with a body and its length. */
export function ok(body: string, ...fields: readonly string[]): string {
  return ["HTTP/1.1 200 OK", `Content-Length: ${body.length}`, ...fields, "", body].join("\r\n");
}
