import type { Server, ServerWebSocket } from "bun";
import { ApiError } from "../domain/errors.ts";

/** Longest message that a client may send, and the most that may wait to be taken of one client, in `bytes`. */
export const SOCKET_WINDOW_BYTES = 262_144;

/** How often a client is pinged. */
const PING_INTERVAL_MS = 15_000;
/** A client that sends nothing for this long, not even a pong, is gone. */
const SILENCE_MS_MAX = 45_000;
/** A client that stops reading also stops answering pings. It may do so for this long. */
const STALL_MS_MAX = 600_000;

/** Codes of RFC 6455 with which a socket is closed, and those of this interface from 4000 on. */
export const CloseCode = {
  normal: 1000,
  /** a message that the protocol of the socket does not have */
  unexpected: 1003,
  /** the client sent more than it may before it was taken */
  tooMuch: 1009,
  failed: 1011,
  /** the connection in the guest was reset */
  reset: 4000,
} as const;

/** Settings of the server's WebSockets. Their limits bound what one client can make the service hold. */
export const SOCKET_SETTINGS = {
  maxPayloadLength: SOCKET_WINDOW_BYTES,
  // `send` is never called while an earlier message waits, so this is one message and some short ones.
  backpressureLimit: 2 * SOCKET_WINDOW_BYTES,
  closeOnBackpressureLimit: true,
  perMessageDeflate: false,
  // Pings are sent by `Socket`, which also notices that they are not answered.
  sendPings: false,
  idleTimeout: 0,
} as const;

export type SocketMessage = string | Uint8Array;

/** A WebSocket of the server: messages in both directions, with back-pressure. */
export class Socket {
  /** resolves when the socket is closed, by whichever side */
  readonly closed: Promise<SocketClose>;
  /** fires at the same time */
  readonly signal: AbortSignal;
  readonly #closing = Promise.withResolvers<SocketClose>();
  readonly #closed = new AbortController();
  readonly #inbox: SocketMessage[] = [];
  #inboxBytes = 0;
  #raw: ServerWebSocket<unknown> | null = null;
  #wake: (() => void) | null = null;
  #drained: PromiseWithResolvers<void> | null = null;
  #pings: Timer | undefined;
  #heardAt = 0;

  constructor() {
    this.closed = this.#closing.promise;
    this.signal = this.#closed.signal;
  }

  get isOpen(): boolean {
    return !this.signal.aborted;
  }

  /** No message waits to be taken. */
  get isIdle(): boolean {
    return this.#inbox.length === 0;
  }

  /**
   * Sends a message, and resolves when more may be sent: true, or false when the socket is closed. One call at a time; short
   * messages may be sent by `notify` meanwhile.
   */
  async send(message: SocketMessage): Promise<boolean> {
    if (!this.isOpen || this.#raw === null) return false;
    const sent = this.#raw.send(message);
    if (sent > 0) return true;
    if (sent === 0 && message.length > 0) return false;
    this.#drained ??= Promise.withResolvers();
    await this.#drained.promise;
    return this.isOpen;
  }

  /** Sends a short message behind whatever waits. */
  notify(text: string): void {
    if (this.isOpen) this.#raw?.send(text);
  }

  /** Messages of the client in their order until the socket is closed; those that came before are given, too. */
  async *messages(): AsyncGenerator<SocketMessage, void, undefined> {
    for (;;) {
      for (let message = this.#inbox.shift(); message !== undefined; message = this.#inbox.shift()) {
        yield message;
        // Only now it is taken: until then it counts.
        this.#inboxBytes -= message.length;
      }
      if (!this.isOpen) return;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  close(code: number, reason = ""): void {
    if (!this.isOpen) return;
    this.#raw?.close(code, reason);
    this.#onClose(code, reason);
  }

  /** What the server calls. */
  handlers() {
    return {
      open: (raw: ServerWebSocket<unknown>) => {
        this.#raw = raw;
        this.#heardAt = performance.now();
        this.#pings = setInterval(() => this.#ping(), PING_INTERVAL_MS);
      },
      message: (_: unknown, message: SocketMessage) => this.#onMessage(message),
      pong: () => {
        this.#heardAt = performance.now();
      },
      drain: () => this.#onDrain(),
      close: (_: unknown, code: number, reason: string) => this.#onClose(code, reason),
    };
  }

  #ping(): void {
    const limitMs = this.#drained === null ? SILENCE_MS_MAX : STALL_MS_MAX;
    if (performance.now() - this.#heardAt < limitMs) this.#raw?.ping();
    else this.#raw?.terminate();
  }

  #onMessage(message: SocketMessage): void {
    this.#heardAt = performance.now();
    if (!this.isOpen) return;
    this.#inbox.push(message);
    this.#inboxBytes += message.length;
    // Bun has no way to stop reading from the connection, so that the client has to wait by itself.
    if (this.#inboxBytes > SOCKET_WINDOW_BYTES || this.#inbox.length > INBOX_COUNT_MAX) {
      this.close(CloseCode.tooMuch, `more than ${SOCKET_WINDOW_BYTES} bytes wait to be taken`);
    }
    this.#wake?.();
  }

  #onDrain(): void {
    this.#heardAt = performance.now();
    // It may be called when only a part of what waited was sent.
    if ((this.#raw?.getBufferedAmount() ?? 0) > SOCKET_WINDOW_BYTES) return;
    this.#drained?.resolve();
    this.#drained = null;
  }

  #onClose(code: number, reason: string): void {
    clearInterval(this.#pings);
    this.#closing.resolve({ code, reason });
    this.#closed.abort();
    this.#drained?.resolve();
    this.#drained = null;
    this.#wake?.();
  }
}

/** Messages of a client that may wait at once: each takes more than its bytes. */
const INBOX_COUNT_MAX = 4096;

/** How a socket was closed. */
export interface SocketClose {
  readonly code: number;
  readonly reason: string;
}

/** A request that asks for a WebSocket, and the server that it came to. */
export interface Handshake {
  readonly request: Request;
  readonly server: Server<unknown> | null;
}

/** The first protocol of `known` that the client offers; null when it offers none of them. */
export function chosenProtocol(request: Request, known: readonly string[]): string | null {
  const offered = (request.headers.get("sec-websocket-protocol") ?? "").split(",").map((name) => name.trim());
  return known.find((name) => offered.includes(name)) ?? null;
}

/**
 * Answers a request with the upgrade to a WebSocket, which is then `socket`.
 * @param protocol as `chosenProtocol` gave it
 * @throws ApiError `validation_error` when the request is no handshake, or not a whole one
 */
export function upgrade(
  { request, server }: Handshake,
  { requestId, protocol, socket }: { requestId: string; protocol: string | null; socket: Socket },
): Response {
  const headers = {
    "x-request-id": requestId,
    ...(protocol === null ? {} : { "sec-websocket-protocol": protocol }),
  };
  if (server?.upgrade(request, { headers, data: socket.handlers() }) !== true) {
    throw new ApiError("validation_error", "this path is a WebSocket: the request must ask for an upgrade", {
      field: "upgrade",
    });
  }
  // The server has sent the answer; this one is for the log and the metrics.
  return new Response(null, { status: 101 });
}
