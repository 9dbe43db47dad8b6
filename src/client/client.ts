import { treaty } from "@elysiajs/eden";
import type { App } from "../api/app.ts";
import { given } from "../domain/given.ts";
import { Patience, type PatienceOptions } from "./connections/patience.ts";
import { AnswerError, ResponseError, UnreachableError } from "./errors.ts";
import type { V1 } from "./types.ts";

/** Longest exchange, in `milliseconds`: a long poll of 60 s, and time to spare. */
export const EXCHANGE_TIMEOUT_MS = 90_000;

export interface ClientOptions {
  /** of the appliance, without the prefix of an interface */
  readonly url: string;
  /** null: requests carry no token */
  readonly token: string | null;
  /** makes the requests; the default is the `fetch` of the runtime */
  readonly fetch?: (url: URL, init: RequestInit) => Promise<Response>;
  /** opens the WebSockets; the default is that of the runtime; in a browser it cannot send header fields, so no token */
  readonly socket?: (url: URL, init: SocketInit) => WebSocket;
  /** limits of the wait for an appliance that is being restarted */
  readonly patience?: PatienceOptions;
  /** text that follows the message of an answer 401 */
  readonly tokenHint?: string;
}

export interface SocketInit {
  readonly protocols: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
}

export interface SocketOptions extends Pick<CallOptions, "query" | "signal"> {
  readonly protocols: readonly string[];
}

export interface CallOptions {
  readonly query?: Readonly<Record<string, string | number | boolean | undefined>>;
  /** a query that is encoded already, in place of `query` */
  readonly rawQuery?: string;
  /** sent as it is, as application/octet-stream */
  readonly body?: Blob | ReadableStream<Uint8Array>;
  /** sent as application/json, in place of `body` */
  readonly json?: object;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
  /**
   * encoding that the appliance may use for the answer; whether its body then stays encoded is up to `fetch` of the
   * options, and browsers choose the encoding themselves
   */
  readonly encoding?: "gzip" | "identity";
  /** false: the exchange may last for any time; true or absent: {@link EXCHANGE_TIMEOUT_MS} */
  readonly deadline?: boolean;
  /** default is manual: the answer is the redirection */
  readonly redirect?: "follow" | "manual";
}

/**
 * A client of one appliance. Routes that answer with JSON are called by their types, through `v1` and {@link answerOf}:
 *
 *     const operation = await answerOf(client.v1.operations({ id }).get({ query: { wait: 25 } }));
 *
 * Eden puts parameters of paths into the URL as they are: text of a user is to be encoded (`encodeURIComponent`).
 * Downloads, uploads, event streams and paths that end in a slash go through `call`: Eden reads every answer to its end
 * and drops the slash.
 */
export class Client {
  readonly #options: ClientOptions;
  readonly #patience: Patience;
  /** routes that answer with JSON, by their paths and methods */
  readonly v1: V1;

  constructor(options: ClientOptions) {
    this.#options = { ...options, url: options.url.replace(/\/+$/, "") };
    this.#patience = new Patience(options.patience);
    const exchange = (url: string | URL, init: RequestInit): Promise<Response> =>
      this.#exchange(new URL(url), init, true);
    this.v1 = treaty<App>(this.#options.url, {
      // Eden calls it as a function; it has no use for `preconnect`.
      fetcher: exchange as typeof fetch,
      // Otherwise every text that looks like a date, such as a tag, becomes a Date.
      parseDate: false,
    }).v1 as unknown as V1;
  }

  /**
   * One request to a path below /v1, without reading the body of its answer.
   * @throws ResponseError for a status of 400 and above, UnreachableError, the reason of `signal`
   */
  async call(method: string, path: string, options: CallOptions = {}): Promise<Response> {
    const url = this.#urlOf(path, options.query);
    if (options.rawQuery !== undefined) url.search = options.rawQuery;
    const headers = new Headers(options.headers);
    if (options.body !== undefined) headers.set("content-type", "application/octet-stream");
    if (options.json !== undefined) headers.set("content-type", "application/json");
    if (options.encoding !== undefined) headers.set("accept-encoding", options.encoding);
    const init: RequestInit & { duplex?: "half" } = { method, headers };
    if (options.signal !== undefined) init.signal = options.signal;
    if (options.redirect !== undefined) init.redirect = options.redirect;
    if (options.body !== undefined) init.body = options.body;
    if (options.json !== undefined) init.body = JSON.stringify(options.json);
    // The standard requires this value for a stream.
    if (options.body instanceof ReadableStream) init.duplex = "half";
    return await this.#exchange(url, init, options.deadline !== false);
  }

  /**
   * The JSON of the answer to one request, for routes whose path is known only when the program runs.
   * @throws as `call`; AnswerError for an answer that is not JSON
   */
  async exchange<Answer>(method: string, path: string, options: CallOptions = {}): Promise<Answer> {
    const response = await this.call(method, path, options);
    const isJson = response.headers.get("content-type")?.startsWith("application/json") === true;
    if (isJson) return (await response.json()) as Answer;
    await response.body?.cancel();
    throw new AnswerError(`HTTP status ${response.status} without JSON from ${this.#options.url}`);
  }

  /**
   * Opens a WebSocket below /v1; its binary messages are ArrayBuffers. The caller closes it.
   * @param listen is called before the socket is open, because messages arrive as soon as it is
   * @throws ResponseError with the appliance's reason for refusing it, UnreachableError, the reason of `signal`
   */
  async socket<T>(
    path: string,
    { query, protocols, signal }: SocketOptions,
    listen: (socket: WebSocket) => T,
  ): Promise<T> {
    signal?.throwIfAborted();
    const url = this.#urlOf(path, query);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const { headers } = this.target(path);
    const socket = (this.#options.socket ?? openSocket)(url, { protocols, headers });
    socket.binaryType = "arraybuffer";
    const listening = listen(socket);
    const opened = Promise.withResolvers<boolean>();
    const leave = () => socket.close();
    socket.addEventListener("open", () => opened.resolve(true), { once: true });
    socket.addEventListener("close", () => opened.resolve(false), { once: true });
    // Some runtimes report a refusal only by an error.
    socket.addEventListener("error", () => opened.resolve(false), { once: true });
    signal?.addEventListener("abort", leave, { once: true });
    const isOpen = await opened.promise;
    signal?.removeEventListener("abort", leave);
    if (signal?.aborted) socket.close();
    signal?.throwIfAborted();
    if (isOpen) return listening;
    // A WebSocket hides the answer. The same request without a key is refused for the same reason.
    const refusal = await this.#refusal(path, query);
    throw new UnreachableError(`no WebSocket to ${this.#options.url}: HTTP status ${refusal.status}`);
  }

  /** The answer that refuses a WebSocket. @throws ResponseError for any other reason than the connection; UnreachableError */
  async #refusal(path: string, query: CallOptions["query"]): Promise<{ readonly status: number }> {
    const options = given({ query });
    const headers = { upgrade: "websocket", connection: "upgrade" };
    try {
      return await this.call("GET", path, { ...options, headers }).catch((error: unknown) => {
        if (!(error instanceof UnreachableError)) throw error;
        // Node sends no such header fields.
        return this.call("GET", path, options);
      });
    } catch (error) {
      // It lacks only the key, so nothing but the connection was wrong with the WebSocket.
      if (error instanceof ResponseError && error.details["field"] === "upgrade") return error;
      throw error;
    }
  }

  #urlOf(path: string, query: CallOptions["query"] = {}): URL {
    const url = new URL(`${this.#options.url}/v1${path}`);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    return url;
  }

  /** URL and header fields of a GET below /v1, for a program that sends its requests itself. */
  target(path: string): { readonly url: string; readonly headers: Readonly<Record<string, string>> } {
    const { url, token } = this.#options;
    const headers: Record<string, string> = token === null ? {} : { authorization: `Bearer ${token}` };
    return { url: `${url}/v1${path}`, headers };
  }

  /** The metrics in the text format of Prometheus; empty behind a proxy that hides them. @throws UnreachableError */
  async metrics(): Promise<string> {
    const signal = AbortSignal.timeout(EXCHANGE_TIMEOUT_MS);
    const response = await this.#fetch(new URL(`${this.#options.url}/metrics`), { signal }, null);
    return response.ok ? await response.text() : "";
  }

  async #exchange(url: URL, init: RequestInit, deadline: boolean): Promise<Response> {
    const headers = new Headers(init.headers);
    const { token } = this.#options;
    if (token !== null) headers.set("authorization", `Bearer ${token}`);
    const caller = init.signal ?? null;
    const signals = [
      ...(caller === null ? [] : [caller]),
      ...(deadline ? [AbortSignal.timeout(EXCHANGE_TIMEOUT_MS)] : []),
    ];
    const signal = AbortSignal.any(signals);
    const response = await this.#fetch(url, { redirect: "manual", ...init, headers, signal }, caller);
    if (response.status >= 400) throw await this.#failure(response);
    return response;
  }

  /** @param caller the signal of the caller, whose reason is thrown as it is, also when it is a time limit */
  async #fetch(url: URL, init: RequestInit, caller: AbortSignal | null): Promise<Response> {
    try {
      return await this.#patience.fetch(init, () => (this.#options.fetch ?? fetch)(url, init));
    } catch (error) {
      if (caller?.aborted) throw caller.reason;
      const { message } = error as Error;
      throw new UnreachableError(`cannot reach an appliance at ${this.#options.url}: ${message}`, { cause: error });
    }
  }

  async #failure(response: Response): Promise<ResponseError> {
    const text = await response.text();
    let body: { error?: string; message?: string; details?: Record<string, unknown> } = {};
    try {
      body = JSON.parse(text) as typeof body;
    } catch (error) {
      // SyntaxError: a proxy, or another server at that address, sent the answer.
      if (!(error instanceof SyntaxError)) throw error;
    }
    const fallback = `HTTP status ${response.status} from ${this.#options.url}`;
    const hint = response.status === 401 ? (this.#options.tokenHint ?? "") : "";
    return new ResponseError(response, { error: "no error object", message: fallback, ...body }, hint);
  }
}

/** The second argument of a WebSocket in Node and Bun, in place of its protocols. */
interface ServerSocketInit {
  readonly protocols: string[];
  readonly headers: Readonly<Record<string, string>>;
}

/** A WebSocket of the runtime. That of a browser accepts only protocols; those of Node and Bun also accept headers. */
function openSocket(url: URL, { protocols, headers }: SocketInit): WebSocket {
  const { process } = globalThis as { readonly process?: { readonly versions?: { readonly node?: string } } };
  if (process?.versions?.node === undefined) return new WebSocket(url, [...protocols]);
  const Socket = WebSocket as unknown as new (url: URL, init: ServerSocketInit) => WebSocket;
  return new Socket(url, { protocols: [...protocols], headers });
}

/** An answer as Eden returns it. */
interface EdenAnswer {
  readonly data: unknown;
  readonly error: { readonly value: unknown } | null;
  readonly response: Response;
}

/**
 * The JSON of an answer; an empty text if it has no body.
 * @throws ResponseError, UnreachableError, AnswerError, the reason of the request's signal
 */
export async function answerOf<Answer extends EdenAnswer>(call: Promise<Answer>): Promise<NonNullable<Answer["data"]>> {
  const { data, error, response } = await call.catch((thrown: unknown) => {
    if (!(thrown instanceof SyntaxError)) throw thrown;
    throw new AnswerError(`an answer is not the JSON that it says: ${thrown.message}`, { cause: thrown });
  });
  // Eden turns a failure of `fetch` into an answer 503.
  if (error?.value instanceof Error) throw error.value;
  const isJson = response.headers.get("content-type")?.startsWith("application/json") === true;
  if (error === null && (isJson || response.status === 204)) return data as NonNullable<Answer["data"]>;
  throw new AnswerError(`HTTP status ${response.status} without JSON from ${new URL(response.url).origin}`);
}
