import { UnreachableError } from "../../client/errors.ts";
import { eventsOf } from "../../client/events.ts";
import { idOf, type Message, type MessageId, parseMessage, standardHeaders } from "./messages.ts";

/** Largest number of messages at a time, which is the limit of an account of the appliance. */
const PENDING_COUNT_MAX = 256;
/** Code of JSON-RPC for errors of the transport. */
const SERVER_ERROR = -32_000;
const PARSE_ERROR = -32_700;
const SESSION_HEADER = "mcp-session-id";

export interface BridgeOptions {
  /** Sends a message. @throws UnreachableError, the reason of `signal` */
  readonly post: (body: string, headers: Record<string, string>, signal: AbortSignal) => Promise<Response>;
  /** Writes a line for the client of the protocol. */
  readonly write: (line: string) => Promise<void>;
  /** Reports a failure to a person. */
  readonly say: (text: string) => void;
}

/** Passes messages between a client of the protocol and an appliance. Every request gets one answer, unless it is cancelled. */
export class Bridge {
  readonly #options: BridgeOptions;
  readonly #pending = new Map<symbol, { readonly id: MessageId | null; readonly left: AbortController }>();
  #idle = Promise.withResolvers<void>();
  #session: string | null = null;
  #version: string | null = null;

  constructor(options: BridgeOptions) {
    this.#options = options;
    this.#idle.resolve();
  }

  /** Resolves when no message waits for its answer. */
  get idle(): Promise<void> {
    return this.#idle.promise;
  }

  /** Passes on a message of the client. Resolves when it is answered. @throws Error when the answer cannot be written */
  async take(text: string | null): Promise<void> {
    const message = text === null ? null : parseMessage(text);
    if (text === null || message === null) {
      const reason = text === null ? "the message is too long" : "the message must be one object of JSON";
      this.#options.say(reason);
      await this.#fail(null, PARSE_ERROR, reason);
      return;
    }
    if (message.method === "notifications/cancelled") this.#cancel(message);
    const id = idOf(message);
    if (this.#pending.size >= PENDING_COUNT_MAX) {
      await this.#fail(id, SERVER_ERROR, "too many requests wait for their answers");
      return;
    }
    const key = Symbol("message");
    const left = new AbortController();
    if (this.#pending.size === 0) this.#idle = Promise.withResolvers();
    this.#pending.set(key, { id, left });
    using _done = {
      [Symbol.dispose]: () => {
        this.#pending.delete(key);
        if (this.#pending.size === 0) this.#idle.resolve();
      },
    };
    const failure = await this.#exchange(text, message, left.signal).catch((error: unknown) => {
      if (left.signal.aborted) return null;
      if (error instanceof UnreachableError) return error.message;
      throw error;
    });
    if (failure === null || left.signal.aborted) return;
    this.#options.say(failure);
    if (id !== null) await this.#fail(id, SERVER_ERROR, failure);
  }

  /** Leaves all requests, which ends the appliance's work for them. */
  end(): void {
    for (const { left } of this.#pending.values()) left.abort();
  }

  #cancel({ params }: Message): void {
    for (const { id, left } of this.#pending.values()) if (id !== null && id === params?.["requestId"]) left.abort();
  }

  /** Resolves with null when the message was answered, otherwise with the reason why it was not. */
  async #exchange(text: string, message: Message, signal: AbortSignal): Promise<string | null> {
    const id = idOf(message);
    const session = this.#session === null ? {} : { [SESSION_HEADER]: this.#session };
    const version = this.#version === null ? {} : { "mcp-protocol-version": this.#version };
    const isFirst = message.method === "initialize";
    const headers = { ...(isFirst ? {} : { ...session, ...version }), ...standardHeaders(message) };
    const response = await this.#options.post(text, headers, signal);
    if (isFirst && response.ok) this.#session = response.headers.get(SESSION_HEADER);
    const { body, status } = response;
    if (response.headers.get("content-type")?.startsWith("text/event-stream") !== true || body === null) {
      return await this.#withoutEvents(await response.text(), status, id);
    }
    let isAnswered = id === null;
    for await (const { data } of eventsOf(body, brokenOff)) {
      const answer = parseMessage(data);
      if (answer === null) continue;
      if (answer.method === undefined && answer.id === id) isAnswered = true;
      if (isFirst && typeof answer.result?.["protocolVersion"] === "string") {
        this.#version = answer.result["protocolVersion"];
      }
      await this.#options.write(JSON.stringify(answer));
    }
    return isAnswered ? null : "the appliance has stopped before its answer; the call may have had effects";
  }

  /** An answer that is not a stream: an error, or none, which a notification gets. */
  async #withoutEvents(text: string, status: number, id: MessageId | null): Promise<string | null> {
    const answer = parseMessage(text);
    if (answer?.error !== undefined && id !== null) {
      await this.#options.write(JSON.stringify({ ...answer, id }));
      return null;
    }
    return status < 300 && id === null ? null : `HTTP status ${status} without an answer of the protocol`;
  }

  async #fail(id: MessageId | null, code: number, message: string): Promise<void> {
    await this.#options.write(JSON.stringify({ jsonrpc: "2.0", id, error: { code, message } }));
  }
}

/** The error of an exchange whose answer breaks off. */
function brokenOff(error: Error): UnreachableError {
  const also = "the call may have had effects: list_operations shows them";
  return new UnreachableError(`the connection to the appliance broke; ${also}`, { cause: error });
}
