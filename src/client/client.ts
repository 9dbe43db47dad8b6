import { type Treaty, treaty } from "@elysiajs/eden";
import type { App } from "../api/app.ts";
import { AnswerError, ResponseError, UnreachableError } from "./errors.ts";

/** Longest exchange, in `milliseconds`: a long poll of 60 s, and time to spare. */
export const EXCHANGE_TIMEOUT_MS = 90_000;

export interface ClientOptions {
  /** of the appliance, without a trailing slash and without the prefix of an interface */
  readonly url: string;
  /** null: requests carry no token */
  readonly token: string | null;
  /** makes the requests; the default is the `fetch` of the runtime */
  readonly fetch?: (url: URL, init: RequestInit) => Promise<Response>;
  /** opens the WebSockets; the default is the one of the runtime, which in a browser sends no header fields */
  readonly socket?: (url: URL, init: SocketInit) => WebSocket;
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
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
  /** encoding that the appliance may use for the answer, whose body then stays encoded */
  readonly encoding?: "gzip" | "identity";
  /** false: the exchange may last for any time; true or absent: {@link EXCHANGE_TIMEOUT_MS} */
  readonly deadline?: boolean;
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
  readonly v1: Treaty.Create<App>["v1"];

  constructor(options: ClientOptions) {
    this.#options = options;
    const exchange = (url: string | URL, init: RequestInit): Promise<Response> =>
      this.#exchange(new URL(url), init, true);
    this.v1 = treaty<App>(options.url, {
      // Eden calls it as a function; it has no use for `preconnect`.
      fetcher: exchange as typeof fetch,
      // Otherwise every text that looks like a date, such as a tag, becomes a Date.
      parseDate: false,
    }).v1;
  }

  /**
   * One request to a path below /v1, without a look at its answer's body; redirects are not followed.
   * @throws ResponseError for a status of 400 and above, UnreachableError, the reason of `signal`
   */
  async call(method: string, path: string, options: CallOptions = {}): Promise<Response> {
    const url = this.#urlOf(path, options.query);
    if (options.rawQuery !== undefined) url.search = options.rawQuery;
    const headers = new Headers(options.headers);
    if (options.body !== undefined) headers.set("content-type", "application/octet-stream");
    if (options.encoding !== undefined) headers.set("accept-encoding", options.encoding);
    const init: BunFetchRequestInit = { method, headers };
    if (options.signal !== undefined) init.signal = options.signal;
    if (options.encoding !== undefined) init.decompress = false;
    if (options.body !== undefined) init.body = options.body;
    return await this.#exchange(url, init, options.deadline !== false);
  }

  /**
   * Opens a WebSocket below /v1; its binary messages are ArrayBuffers. The caller closes it.
   * @param listen is called before it is open: messages come as soon as it is
   * @throws ResponseError that says why the appliance refused it, UnreachableError, the reason of `signal`
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
    const socket = this.#options.socket?.(url, { protocols, headers }) ?? new WebSocket(url, [...protocols]);
    socket.binaryType = "arraybuffer";
    const listening = listen(socket);
    const opened = Promise.withResolvers<boolean>();
    const leave = () => socket.close();
    socket.addEventListener("open", () => opened.resolve(true), { once: true });
    socket.addEventListener("close", () => opened.resolve(false), { once: true });
    signal?.addEventListener("abort", leave, { once: true });
    const isOpen = await opened.promise;
    signal?.removeEventListener("abort", leave);
    if (signal?.aborted) socket.close();
    signal?.throwIfAborted();
    if (isOpen) return listening;
    // A WebSocket does not tell what the answer was. The same request without a key is refused for the same reason.
    const asked = { upgrade: "websocket", connection: "upgrade" };
    const refusal = await this.call("GET", path, { ...(query === undefined ? {} : { query }), headers: asked }).catch(
      (error: unknown) => {
        // It lacks only the key, so nothing but the connection was wrong with the WebSocket.
        if (error instanceof ResponseError && error.details["field"] === "upgrade") return error;
        throw error;
      },
    );
    throw new UnreachableError(`no WebSocket to ${this.#options.url}: HTTP status ${refusal.status}`);
  }

  #urlOf(path: string, query: CallOptions["query"] = {}): URL {
    const url = new URL(`${this.#options.url}/v1${path}`);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    return url;
  }

  /** URL and header fields of a GET below /v1, for a program that makes its requests itself. */
  target(path: string): { readonly url: string; readonly headers: Readonly<Record<string, string>> } {
    const { url, token } = this.#options;
    const headers: Record<string, string> = token === null ? {} : { authorization: `Bearer ${token}` };
    return { url: `${url}/v1${path}`, headers };
  }

  /** The metrics in the text format of Prometheus; empty behind a proxy that hides them. @throws UnreachableError */
  async metrics(): Promise<string> {
    const signal = AbortSignal.timeout(EXCHANGE_TIMEOUT_MS);
    const response = await this.#fetch(new URL(`${this.#options.url}/metrics`), { signal });
    return response.ok ? await response.text() : "";
  }

  async #exchange(url: URL, init: RequestInit, deadline: boolean): Promise<Response> {
    const headers = new Headers(init.headers);
    const { token } = this.#options;
    if (token !== null) headers.set("authorization", `Bearer ${token}`);
    const signals = [
      ...(init.signal ? [init.signal] : []),
      ...(deadline ? [AbortSignal.timeout(EXCHANGE_TIMEOUT_MS)] : []),
    ];
    const signal = AbortSignal.any(signals);
    const response = await this.#fetch(url, { ...init, headers, redirect: "manual", signal });
    if (response.status >= 400) throw await this.#failure(response);
    return response;
  }

  async #fetch(url: URL, init: RequestInit): Promise<Response> {
    try {
      return await (this.#options.fetch ?? fetch)(url, init);
    } catch (error) {
      if (init.signal?.aborted && (init.signal.reason as Error)?.name !== "TimeoutError") throw init.signal.reason;
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

/** An answer as Eden gives it. */
interface EdenAnswer {
  readonly data: unknown;
  readonly error: { readonly value: unknown } | null;
  readonly response: Response;
}

/**
 * The JSON of an answer; an empty text where it has no body.
 * @throws ResponseError, UnreachableError, AnswerError, the reason of the request's signal
 */
export async function answerOf<Answer extends EdenAnswer>(call: Promise<Answer>): Promise<NonNullable<Answer["data"]>> {
  const { data, error, response } = await call.catch((thrown: unknown) => {
    if (!(thrown instanceof SyntaxError)) throw thrown;
    throw new AnswerError(`an answer is not the JSON that it says: ${thrown.message}`, { cause: thrown });
  });
  // Eden takes a failure of `fetch` for an answer 503.
  if (error?.value instanceof Error) throw error.value;
  const isJson = response.headers.get("content-type")?.startsWith("application/json") === true;
  if (error === null && (isJson || response.status === 204)) return data as NonNullable<Answer["data"]>;
  throw new AnswerError(`HTTP status ${response.status} without JSON from ${new URL(response.url).origin}`);
}
