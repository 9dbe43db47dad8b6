import type { Server, ServerWebSocket } from "bun";
import { ByteBlocks } from "../domain/bytes/byte-blocks.ts";
import { ApiError } from "../domain/errors.ts";
import { given } from "../domain/given.ts";
import { ownTurn, TurnCounts } from "../system/turns.ts";

/** Longest message of a client, and the largest size of its messages that wait to be read, in `bytes`. */
export const SOCKET_WINDOW_BYTES = 262_144;

/** Longest message that is sent, in `bytes`; longer content is sent in several. */
export const SENT_BYTES_MAX = 65_536;
/** Largest size of the messages that wait to be sent, in `bytes`: a long one and some short ones. Bun's buffer may be twice as large. */
const UNSENT_BYTES_MAX = 2 * SENT_BYTES_MAX;
/** Longest text message of a client, in characters: all of them are short, and each is parsed at once. */
const TEXT_CHARACTERS_MAX = 64;

/** Size of the messages that wait to be read, in `bytes`: a full window, and the client's short messages. */
const INBOX_BYTES_MAX = SOCKET_WINDOW_BYTES + 1024;
/** Messages of a socket that are read in one turn: a connection can deliver tens of thousands of short ones at once. */
const TURN_MESSAGES_COUNT = 128;
/** Messages, pings and pongs that all sockets of an owner may receive in one turn of the event loop. */
const TURN_FRAMES_COUNT_MAX = 32_768;
const received = new TurnCounts();
/** Interval between pings to a client, and between checks of its token. */
const PING_INTERVAL_MS = 15_000;
/** The connection is closed when the client sends nothing for this long, not even a pong. */
const SILENCE_MS_MAX = 45_000;
/** A client that does not read cannot answer pings either; it may stop reading for this long. */
const STALL_MS_MAX = 600_000;

/** Close codes: those of RFC 6455, and our own from 4000 on. */
export const CloseCode = {
  normal: 1000,
  /** the protocol of the socket has no such message */
  unexpected: 1003,
  /** the token of the handshake is no longer valid */
  unauthorized: 1008,
  /** the client sent more than its window allows */
  tooMuch: 1009,
  failed: 1011,
  /** the connection in the guest was reset */
  reset: 4000,
} as const;

/** Settings of the server's WebSockets. Their limits bound the memory that one client can use. */
export const SOCKET_SETTINGS = {
  maxPayloadLength: SOCKET_WINDOW_BYTES,
  // `Socket.send` waits for the message before, so only one long message and some short ones can be buffered.
  backpressureLimit: UNSENT_BYTES_MAX,
  closeOnBackpressureLimit: true,
  perMessageDeflate: false,
  // `Socket` sends pings itself, because it must also notice missing answers.
  sendPings: false,
  idleTimeout: 0,
} as const;

export type SocketMessage = string | Uint8Array;

export interface SocketOptions {
  /**
   * gets text messages ahead of the messages that wait to be read, a few in each turn of the event loop; returns true for a
   * message that the reader must not get
   */
  readonly onText?: (text: string) => boolean;
  /** true: binary messages are parts of a stream of bytes, so those that wait to be read may become one */
  readonly joins?: boolean;
}

/** A WebSocket on the server, with back-pressure in both directions. */
export class Socket {
  /** resolves when either side has closed the socket */
  readonly closed: Promise<SocketClose>;
  /** fires when the socket is closed */
  readonly signal: AbortSignal;
  readonly #closing = Promise.withResolvers<SocketClose>();
  readonly #closed = new AbortController();
  readonly #onText: ((text: string) => boolean) | null;
  readonly #joins: boolean;
  readonly #inbox: (SocketMessage | ByteBlocks)[] = [];
  #inboxBytes = 0;
  /** text messages that wait to be passed on */
  readonly #texts: string[] = [];
  #passesTexts = false;
  #raw: ServerWebSocket<unknown> | null = null;
  #wake: (() => void) | null = null;
  #drained: PromiseWithResolvers<void> | null = null;
  #pings: Timer | undefined;
  #heardAt = 0;
  #owner: unknown = null;

  constructor({ onText, joins = false }: SocketOptions = {}) {
    this.#onText = onText ?? null;
    this.#joins = joins;
    this.closed = this.#closing.promise;
    this.signal = this.#closed.signal;
  }

  get isOpen(): boolean {
    return !this.signal.aborted;
  }

  /** True when no message of the client waits to be read. */
  get isIdle(): boolean {
    return this.#inbox.length === 0;
  }

  /**
   * Sends a message of at most `SENT_BYTES_MAX`, and resolves when the next one may be sent: to true, or to false when the
   * socket is closed. There must be only one call at a time; `notify` may send short messages meanwhile.
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

  /** Sends a short message after the messages that wait to be sent. */
  notify(message: SocketMessage): void {
    if (this.isOpen) this.#raw?.send(message);
  }

  /** The client's messages in their order, until the socket is closed and all earlier messages have been read. */
  async *messages(): AsyncGenerator<SocketMessage, void, undefined> {
    for (let count = 0; ; ) {
      for (let message = this.#take(); message !== undefined; message = this.#take()) {
        count += 1;
        if (count % TURN_MESSAGES_COUNT === 0) await ownTurn(this.#owner);
        yield message;
        // The message counts until its reader asks for the next one.
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

  /**
   * Callbacks for the server.
   * @param isAllowed whether the token of the handshake is still valid; must not reject
   * @param owner what its sockets receive in a turn of the event loop is bounded, all together; owners take turns
   */
  handlers(isAllowed: () => Promise<boolean>, owner: unknown) {
    this.#owner = owner;
    return {
      open: (raw: ServerWebSocket<unknown>) => {
        this.#raw = raw;
        this.#heardAt = performance.now();
        this.#pings = setInterval(() => void this.#check(isAllowed), PING_INTERVAL_MS);
      },
      message: (_: unknown, message: SocketMessage) => this.#onMessage(message),
      ping: () => this.#onFrame(),
      pong: () => this.#onFrame(),
      drain: () => this.#onDrain(),
      close: (_: unknown, code: number, reason: string) => this.#onClose(code, reason),
    };
  }

  async #check(isAllowed: () => Promise<boolean>): Promise<void> {
    this.#ping();
    if (!(await isAllowed())) this.close(CloseCode.unauthorized, "the token is no longer valid");
  }

  #ping(): void {
    const limitMs = this.#drained === null ? SILENCE_MS_MAX : STALL_MS_MAX;
    if (performance.now() - this.#heardAt < limitMs) this.#raw?.ping();
    else this.#raw?.terminate();
  }

  /** A connection may deliver tens of thousands of short frames at once, and Bun hands over all of them in one turn. */
  #onFrame(): void {
    this.#heardAt = performance.now();
    if (received.add(this.#owner) > TURN_FRAMES_COUNT_MAX) {
      this.close(CloseCode.tooMuch, "too many short messages at once");
    }
  }

  #onMessage(message: SocketMessage): void {
    this.#onFrame();
    if (typeof message === "string" && message.length > TEXT_CHARACTERS_MAX) {
      this.close(CloseCode.unexpected, `a text message of more than ${TEXT_CHARACTERS_MAX} characters`);
    }
    if (!this.isOpen) return;
    if (typeof message === "string" && this.#onText !== null) this.#takeText(message, this.#onText);
    else this.#keep(message);
  }

  #takeText(text: string, onText: (text: string) => boolean): void {
    this.#texts.push(text);
    if (this.#texts.length > INBOX_COUNT_MAX) {
      this.close(CloseCode.tooMuch, `more than ${INBOX_COUNT_MAX} text messages wait to be read`);
    }
    if (!this.#passesTexts) void this.#passTexts(onText);
  }

  /** Passes the first text message of a turn of the event loop on at once, and those behind it in later turns. */
  async #passTexts(onText: (text: string) => boolean): Promise<void> {
    this.#passesTexts = true;
    while (this.#texts.length > 0 && this.isOpen) {
      for (const text of this.#texts.splice(0, TURN_MESSAGES_COUNT)) if (!onText(text)) this.#keep(text);
      await ownTurn(this.#owner);
    }
    this.#passesTexts = false;
  }

  /** Keeps a message until it is read. */
  #keep(message: SocketMessage): void {
    if (!this.#joined(message)) this.#inbox.push(message);
    this.#inboxBytes += message.length;
    // Bun cannot stop reading from the connection, so the client must respect the window.
    if (this.#inboxBytes > INBOX_BYTES_MAX || this.#inbox.length > INBOX_COUNT_MAX) {
      this.close(CloseCode.tooMuch, `more than ${SOCKET_WINDOW_BYTES} bytes wait to be read`);
    }
    this.#wake?.();
  }

  /** Adds a message to those that will be read as one; false when it has to be read alone. */
  #joined(message: SocketMessage): boolean {
    if (!this.#joins || typeof message === "string" || message.length > JOINED_BYTES_MAX) return false;
    let last = this.#inbox.at(-1);
    if (!(last instanceof ByteBlocks)) {
      if (message.length === 0) return true;
      last = new ByteBlocks();
      this.#inbox.push(last);
    }
    last.push(message);
    return true;
  }

  /** Removes and returns the next message, or a part of several that were joined; undefined when none waits. */
  #take(): SocketMessage | undefined {
    const [first] = this.#inbox;
    const part = first instanceof ByteBlocks ? first.take() : null;
    if (!(first instanceof ByteBlocks && first.byteLength > 0)) this.#inbox.shift();
    return first instanceof ByteBlocks ? (part ?? undefined) : first;
  }

  #onDrain(): void {
    this.#heardAt = performance.now();
    // Bun may call this when only a part of the buffer was sent.
    if ((this.#raw?.getBufferedAmount() ?? 0) > 0) return;
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

/** Largest number of messages of a client that wait to be read, because a message takes more memory than its bytes. */
const INBOX_COUNT_MAX = 4096;
/** Longest message that is copied to be joined with others, in `bytes`. */
const JOINED_BYTES_MAX = 4096;

/** How a socket was closed. */
export interface SocketClose {
  readonly code: number;
  readonly reason: string;
}

/** A request for a WebSocket, and the server that received it. */
export interface Handshake {
  readonly request: Request;
  readonly server: Server<unknown> | null;
}

/** The first protocol of `supported` that the client offers; null when it offers none of them. */
export function chosenProtocol(request: Request, supported: readonly string[]): string | null {
  const offered = (request.headers.get("sec-websocket-protocol") ?? "").split(",").map((name) => name.trim());
  return supported.find((name) => offered.includes(name)) ?? null;
}

export interface Upgrade {
  readonly requestId: string;
  /** result of `chosenProtocol` */
  readonly protocol: string | null;
  readonly socket: Socket;
  /** as in `Socket.handlers` */
  readonly isAllowed: () => Promise<boolean>;
  /** as in `Socket.handlers` */
  readonly owner: unknown;
}

/**
 * Upgrades the connection of a request to a WebSocket, and connects it to `socket`.
 * @throws ApiError `validation_error` when the request is not a complete handshake
 */
export function upgrade(
  { request, server }: Handshake,
  { requestId, protocol, socket, isAllowed, owner }: Upgrade,
): Response {
  const headers = {
    "x-request-id": requestId,
    ...given({ "sec-websocket-protocol": protocol }),
  };
  if (server?.upgrade(request, { headers, data: socket.handlers(isAllowed, owner) }) !== true) {
    throw new ApiError("validation_error", "this path is a WebSocket: the request must ask for an upgrade", {
      field: "upgrade",
    });
  }
  // The server has sent its own response; this one is for the log and the metrics.
  return new Response(null, { status: 101 });
}
