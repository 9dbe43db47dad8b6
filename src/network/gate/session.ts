import { isIP, type Socket } from "node:net";
import { ByteBlocks } from "../../domain/bytes/byte-blocks.ts";
import { numericAddress } from "../addresses.ts";
import { GateError } from "../gate.ts";
import { HelloReader } from "./client-hello.ts";
import { type Dialled, dial, judge } from "./dial.ts";
import { DataReceiver, DataSender } from "./flow.ts";
import { FrameError, FrameReader, messageFrame, type ResetReason, resetFrame } from "./frames.ts";
import {
  type Answer,
  CHECKED,
  type CheckRequest,
  type ConnectRequest,
  type ProxyRequest,
  REQUEST_BYTES_MAX,
  type Request,
} from "./messages.ts";
import { nameServerAnswers, proxyFault } from "./probe.ts";
import { askProxy } from "./proxy-handshake.ts";
import type { NameResolver } from "./resolver.ts";

/** Time limit for a destination behind the site's proxy, and for a whole ClientHello. */
const PROXY_MS_MAX = 30_000;
const HELLO_MS_MAX = 10_000;

/** A failure to reach the proxy must not be reported as one of the destination. */
function throwAboutProxy(error: unknown): never {
  if (!(error instanceof GateError)) throw error;
  throw new GateError("unreachable", `the site's proxy: ${error.message}`);
}

/** An outer connection on its way, and the one with the daemon that it is relayed to. */
export class Session {
  /** time of the last byte in either direction, in `milliseconds` */
  lastAt = performance.now();
  idleMs = Number.POSITIVE_INFINITY;
  readonly #daemon: Socket;
  readonly #resolver: NameResolver;
  readonly #abort = new AbortController();
  #outer: Socket | null = null;
  #asked = false;
  /** the ClientHello that is being read; null when the client's bytes need not wait */
  #hello: { readonly reader: HelloReader; readonly name: string; readonly timer: Timer } | null = null;
  readonly #sender: DataSender;
  readonly #receiver: DataReceiver;
  /** bytes of the daemon that wait until the outer socket has accepted the earlier ones, however small the frames are */
  readonly #toOuter = new ByteBlocks();
  #isWriting = false;
  /** sides whose end has arrived; `sent`: the end of the outer side was sent to the daemon */
  readonly #ended = { outer: false, sent: false, daemon: false };
  #over = false;

  constructor(daemon: Socket, resolver: NameResolver) {
    this.#daemon = daemon;
    this.#resolver = resolver;
    this.#receiver = new DataReceiver(daemon);
    this.#sender = new DataSender(daemon, {
      onRoom: () => this.#outer?.resume(),
      onEnded: () => {
        this.#ended.sent = true;
        this.#finish();
      },
    });
    const reader = new FrameReader(REQUEST_BYTES_MAX, {
      message: (payload) => this.#request(payload),
      data: (bytes) => this.#fromDaemon(bytes),
      end: () => this.#daemonEnded(),
      reset: () => this.#close(),
      window: (bytes) => this.#sender.granted(bytes),
    });
    daemon.on("data", (bytes: Buffer) => {
      try {
        reader.push(bytes);
      } catch (error) {
        if (!(error instanceof FrameError)) throw error;
        this.#close();
      }
    });
    // The daemon is gone, or has closed this connection.
    daemon.on("end", () => this.#close());
    daemon.on("error", () => this.#close());
    daemon.on("close", () => this.#close());
  }

  /** Ends the connection when it has been idle for too long. */
  checkIdle(now: number): void {
    if (this.#outer !== null && now - this.lastAt > this.idleMs) this.reset("idle");
  }

  /** Ends both directions, and sends the reason to the daemon. */
  reset(reason: ResetReason): void {
    if (this.#over) return;
    this.#daemon.write(resetFrame(reason));
    this.#close();
  }

  #request(payload: Uint8Array): void {
    if (this.#asked) throw new FrameError("a second request");
    this.#asked = true;
    // The daemon sent it, which this process trusts.
    const request = JSON.parse(Buffer.from(payload).toString("utf8")) as Request;
    this.#serve(request).catch((error: unknown) => this.#fail(error));
  }

  #serve(request: Request): Promise<void> {
    switch (request.op) {
      case "lookup":
        return this.#lookUp(request.lookup);
      case "check":
        return check(request);
      case "connect":
        return this.#connect(request);
    }
  }

  async #lookUp(lookup: ConnectRequest["lookup"]): Promise<void> {
    const addresses = await this.#resolver.resolve(lookup);
    this.#answer({ ok: true, addresses });
    this.#daemon.end();
  }

  async #connect(request: ConnectRequest): Promise<void> {
    const { socket, address, early } = await this.#reach(request);
    if (this.#over) return void socket.resetAndDestroy();
    this.#outer = socket;
    this.idleMs = request.idleMs;
    this.lastAt = performance.now();
    if (request.serverName !== null) {
      const timer = setTimeout(() => this.reset("denied_sni"), HELLO_MS_MAX);
      this.#hello = { reader: new HelloReader(), name: request.serverName, timer };
    }
    this.#answer({ ok: true, addresses: [address] });
    if (early.byteLength > 0) this.#fromOuter(early);
    this.#relay(socket);
  }

  async #reach(request: ConnectRequest): Promise<Dialled & { readonly early: Uint8Array }> {
    const { destination, proxy } = request;
    const { signal } = this.#abort;
    if (proxy === null) {
      const addresses = await this.#resolver.resolve(request.lookup);
      const dialled = await dial(addresses, destination.port, { ...request, port: destination.port }, signal);
      return { ...dialled, early: new Uint8Array(0) };
    }
    // The proxy may read a number as an address, too.
    const literal = isIP(destination.host) === 0 ? numericAddress(destination.host) : destination.host;
    if (literal !== null) judge([literal], { ...request, port: destination.port });
    else if (request.reach.denied !== undefined) {
      throw new GateError("denied", "the site's proxy alone knows its addresses, and some are denied");
    }
    const dialled = await this.#reachProxy(proxy).catch(throwAboutProxy);
    const limit = AbortSignal.timeout(PROXY_MS_MAX);
    try {
      const early = await askProxy(dialled.socket, proxy, destination, AbortSignal.any([signal, limit]));
      return { ...dialled, early };
    } catch (error) {
      dialled.socket.on("error", () => undefined).destroy();
      if (limit.aborted) throw new GateError("timed_out", "the site's proxy does not answer");
      throw error;
    }
  }

  async #reachProxy({ lookup, port }: ProxyRequest): Promise<Dialled> {
    return await dial(await this.#resolver.resolve(lookup), port, null, this.#abort.signal);
  }

  #relay(outer: Socket): void {
    outer.on("data", (bytes: Buffer) => this.#fromOuter(bytes));
    outer.on("end", () => {
      this.#ended.outer = true;
      this.#sender.end();
    });
    outer.on("error", () => this.reset("reset"));
    outer.on("finish", () => this.#finish());
    outer.on("close", () => (this.#ended.outer && outer.writableFinished ? undefined : this.reset("reset")));
    outer.resume();
  }

  #fromOuter(bytes: Uint8Array): void {
    if (this.#over) return;
    this.lastAt = performance.now();
    if (this.#sender.send(bytes)) return;
    this.#sender.compact();
    this.#outer?.pause();
  }

  #fromDaemon(bytes: Uint8Array): void {
    if (this.#outer === null || this.#ended.daemon) return void this.#close();
    this.lastAt = performance.now();
    this.#receiver.arrived(bytes.byteLength);
    if (this.#hello !== null) {
      const { reader, name, timer } = this.#hello;
      const hello = reader.push(bytes);
      if (hello === "more") return;
      if (typeof hello === "string" || hello.serverName !== name) return void this.reset("denied_sni");
      clearTimeout(timer);
      this.#hello = null;
      this.#toOuter.push(reader.held);
    }
    this.#toOuter.push(bytes);
    this.#passOn(this.#outer);
  }

  /** Writes one block after another to the outer socket, and then the end. */
  #passOn(outer: Socket): void {
    if (this.#isWriting || this.#over) return;
    const block = this.#toOuter.take();
    if (block === null) {
      if (this.#ended.daemon) outer.end();
      return;
    }
    this.#isWriting = true;
    outer.write(block, () => {
      this.#isWriting = false;
      if (this.#over) return;
      this.#receiver.taken(block.byteLength);
      this.#passOn(outer);
    });
  }

  #daemonEnded(): void {
    if (this.#outer === null || this.#ended.daemon) return void this.#close();
    if (this.#hello !== null && this.#hello.reader.held.byteLength > 0) return void this.reset("denied_sni");
    this.#ended.daemon = true;
    this.#passOn(this.#outer);
  }

  /** Ends the session when both sides have ended, each has received the other's end, and all bytes were read. */
  #finish(): void {
    if (!this.#ended.sent || this.#outer?.writableFinished !== true || this.#over) return;
    this.#over = true;
    this.#clear();
    this.#daemon.end();
  }

  #answer(answer: Answer): void {
    if (!this.#over) this.#daemon.write(messageFrame(answer));
  }

  #fail(error: unknown): void {
    if (this.#over) return;
    const { verdict, message, addresses } =
      error instanceof GateError ? error : new GateError("unreachable", `the connecting process failed: ${error}`);
    this.#answer({ ok: false, verdict, message, addresses });
    this.#close();
  }

  #close(): void {
    if (this.#over) return;
    this.#over = true;
    this.#clear();
    this.#abort.abort();
    this.#outer?.resetAndDestroy();
    this.#daemon.end();
  }

  #clear(): void {
    if (this.#hello !== null) clearTimeout(this.#hello.timer);
  }
}

/** @throws GateError always, with a verdict of `CHECKED` */
async function check({ what }: CheckRequest): Promise<never> {
  const fault =
    "proxy" in what
      ? await proxyFault(what.proxy)
      : (await nameServerAnswers(what.server))
        ? null
        : "it does not answer";
  if (fault === null) throw new GateError(CHECKED.fine, "it answers");
  throw new GateError(CHECKED.faulty, fault);
}
