import { type ClientConfig, loadClientConfig } from "../config/client.ts";
import type { Environment } from "../config/config.ts";
import { CliError, EXIT_FAILED, EXIT_USAGE } from "./command.ts";

/** How long one exchange may take, in `milliseconds`: a long poll of 60 s, and time to spare. */
const REQUEST_TIMEOUT_MS = 90_000;

/** An error object that the appliance answered with. */
export class ResponseError extends CliError {
  readonly status: number;
  readonly code: string;
  readonly retryAfterSeconds: number | null;

  constructor(response: Response, code: string, message: string, hint = "") {
    // What was asked for could never be right: the command line was not.
    const isUsage = code === "validation_error" || code === "invalid_path";
    super(`${message} (${code})${hint}`, isUsage ? EXIT_USAGE : EXIT_FAILED);
    this.status = response.status;
    this.code = code;
    const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
    this.retryAfterSeconds = Number.isFinite(seconds) ? seconds : null;
  }
}

/** The appliance did not answer at all. */
export class UnreachableError extends CliError {}

export interface CallOptions {
  readonly query?: Readonly<Record<string, string | number | boolean | undefined>>;
  /** a query that is encoded already, in place of `query` */
  readonly rawQuery?: string;
  /** sent as JSON */
  readonly json?: unknown;
  /** sent as it is, as application/octet-stream */
  readonly body?: Blob | ReadableStream<Uint8Array>;
  readonly signal?: AbortSignal;
  /** how the answer may be encoded, which it is then left in */
  readonly encoding?: "gzip" | "identity";
  /** false: as long as it takes */
  readonly deadline?: boolean;
}

/** Options that every command of the client takes. */
export const CLIENT_OPTIONS = {
  url: { type: "string", value: "URL", doc: "address of the appliance (default: COPPICE_URL)" },
} as const;

/** HTTP client of an appliance. */
export class ApiClient {
  readonly #config: ClientConfig;

  /** @throws ConfigError */
  constructor(environment: Environment, url?: string) {
    this.#config = loadClientConfig(environment, url);
  }

  /**
   * One request; redirects are not followed.
   * @throws ResponseError for a status of 400 and above, UnreachableError
   */
  async call(method: string, path: string, options: CallOptions = {}): Promise<Response> {
    const url = new URL(`${this.#config.url}/v1${path}`);
    for (const [name, value] of Object.entries(options.query ?? {})) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    if (options.rawQuery !== undefined) url.search = options.rawQuery;
    const headers = new Headers();
    const { token } = this.#config;
    if (token !== null) headers.set("authorization", `Bearer ${token}`);
    if (options.json !== undefined) headers.set("content-type", "application/json");
    if (options.body !== undefined) headers.set("content-type", "application/octet-stream");
    if (options.encoding !== undefined) headers.set("accept-encoding", options.encoding);
    const signals = [
      ...(options.signal === undefined ? [] : [options.signal]),
      ...(options.deadline === false ? [] : [AbortSignal.timeout(REQUEST_TIMEOUT_MS)]),
    ];
    const init: BunFetchRequestInit = { method, headers, redirect: "manual", signal: AbortSignal.any(signals) };
    if (options.encoding !== undefined) init.decompress = false;
    if (options.json !== undefined) init.body = JSON.stringify(options.json);
    if (options.body !== undefined) init.body = options.body;
    const response = await this.#fetch(url, init);
    if (response.status >= 400) throw await this.#failure(response);
    return response;
  }

  async json<T>(method: string, path: string, options: CallOptions = {}): Promise<T> {
    return (await (await this.call(method, path, options)).json()) as T;
  }

  /** The uuid of `<uuid>` or `tag:<name>`. */
  async imageId(reference: string): Promise<string> {
    if (!reference.startsWith("tag:")) return reference;
    const response = await this.call("GET", "/inspect/", { query: { tag: reference.slice("tag:".length) } });
    const id = /\/inspect\/([0-9a-f-]{36})\/?$/.exec(response.headers.get("location") ?? "")?.[1];
    if (id === undefined) throw new CliError(`the appliance did not say which image ${reference} is`);
    return id;
  }

  /** Where a GET of a path goes, and what it has to carry, for who makes many. */
  target(path: string): { readonly url: string; readonly headers: Readonly<Record<string, string>> } {
    const { url, token } = this.#config;
    const headers: Record<string, string> = token === null ? {} : { authorization: `Bearer ${token}` };
    return { url: `${url}/v1${path}`, headers };
  }

  /** What Prometheus would see; empty behind a proxy that keeps it to itself. */
  async metrics(): Promise<string> {
    const signal = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
    const response = await this.#fetch(new URL(`${this.#config.url}/metrics`), { signal });
    return response.ok ? await response.text() : "";
  }

  /** @throws UnreachableError, the reason of the caller's signal */
  async #fetch(url: URL, init: BunFetchRequestInit): Promise<Response> {
    const { ca } = this.#config;
    if (ca !== null) init.tls = { ca };
    try {
      return await fetch(url, init);
    } catch (error) {
      if (init.signal?.aborted && (init.signal.reason as Error)?.name !== "TimeoutError") throw init.signal.reason;
      const message = `cannot reach an appliance at ${this.#config.url}: ${reason(error as Error, url)}`;
      throw new UnreachableError(message, EXIT_FAILED, { cause: error });
    }
  }

  async #failure(response: Response): Promise<ResponseError> {
    const text = await response.text();
    let body: { error?: string; message?: string } = {};
    try {
      body = JSON.parse(text) as typeof body;
    } catch (error) {
      // SyntaxError: no appliance answered, but a proxy or something else at that address.
      if (!(error instanceof SyntaxError)) throw error;
    }
    const fallback = `HTTP status ${response.status} from ${this.#config.url}`;
    const hint = response.status === 401 ? this.#tokenHint() : "";
    return new ResponseError(response, body.error ?? "no error object", body.message ?? fallback, hint);
  }

  #tokenHint(): string {
    const { origins } = this.#config;
    if (origins.token !== null) return `\nThe token is from ${origins.token}`;
    return "\nSet COPPICE_TOKEN, or make a token: coppice token create --account NAME --save";
  }
}

/** What Bun calls a certificate whose authority it does not know. */
const UNKNOWN_AUTHORITY = new Set([
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
]);

/** Bun's texts advise about the network and its own interface; here a daemon is usually just not running. */
function reason(error: Error, { protocol }: URL): string {
  const { code } = error as NodeJS.ErrnoException;
  if (code === "ECONNREFUSED" || code === "ConnectionRefused") return "connection refused; is coppice serve running?";
  if (code === "ECONNRESET") return `the connection was closed${protocol === "http:" ? "; does it want https?" : ""}`;
  if (UNKNOWN_AUTHORITY.has(code ?? "")) {
    return `${error.message}; COPPICE_CA_FILE names the PEM file of an authority of your own`;
  }
  if (error.name === "TimeoutError") return `no answer within ${REQUEST_TIMEOUT_MS / 1000} s`;
  return error.message;
}
