import { Client, EXCHANGE_TIMEOUT_MS } from "../client/client.ts";
import { REFUSED_CODES } from "../client/connections/patience.ts";
import { AnswerError, OperationError, ResponseError, UnreachableError } from "../client/errors.ts";
import { type ClientConfig, loadClientConfig } from "../config/client.ts";
import type { Environment } from "../config/config.ts";
import { CliError, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_RUN, EXIT_USAGE } from "./command.ts";

/** Options of every command that is a client. */
export const CLIENT_OPTIONS = {
  url: { type: "string", value: "URL", doc: "address of the appliance (default: COPPICE_URL)" },
} as const;

/**
 * The client of the appliance that the environment names.
 * @param urlFlag value of --url, which wins
 * @throws ConfigError
 */
export function openClient(environment: Environment, urlFlag: string | undefined): Client {
  const config = loadClientConfig(environment, urlFlag);
  const { url, token, ca } = config;
  return new Client({
    url,
    token,
    tokenHint: tokenHint(config),
    socket: (target, { protocols, headers }) =>
      new WebSocket(target, { protocols: [...protocols], headers, ...(ca === null ? {} : { tls: { ca } }) }),
    fetch: (target, init) => fetchBy(config, target, init),
  });
}

async function fetchBy({ ca }: ClientConfig, target: URL, init: RequestInit): Promise<Response> {
  // A caller that requests an encoding gets the body in it.
  const decompress = !new Headers(init.headers).has("accept-encoding");
  try {
    return await fetch(target, { ...init, decompress, ...(ca === null ? {} : { tls: { ca } }) });
  } catch (error) {
    throw new Error(reason(error as Error, target), { cause: error });
  }
}

/**
 * A function that sends a message to /mcp of the appliance that the environment names, and throws UnreachableError or the
 * reason of its signal.
 * @throws ConfigError
 */
export function openMcp(environment: Environment, urlFlag: string | undefined) {
  const config = loadClientConfig(environment, urlFlag);
  const authorization = config.token === null ? {} : { authorization: `Bearer ${config.token}` };
  const own = { "content-type": "application/json", accept: "application/json, text/event-stream", ...authorization };
  return async (body: string, headers: Record<string, string>, signal: AbortSignal): Promise<Response> => {
    const init = { method: "POST", headers: { ...headers, ...own }, body, signal, redirect: "manual" } as const;
    const response = await fetchBy(config, new URL(`${config.url}/mcp`), init).catch((error: Error) => {
      signal.throwIfAborted();
      throw new UnreachableError(`cannot reach an appliance at ${config.url}: ${error.message}`, { cause: error });
    });
    if (response.status !== 401) return response;
    await response.body?.cancel();
    throw new UnreachableError(`the appliance at ${config.url} does not accept the token${tokenHint(config)}`);
  };
}

/** True when nothing listened, so that the message was not received. */
export function isNotListening(error: unknown): boolean {
  if (!(error instanceof UnreachableError)) return false;
  const { code } = ((error.cause as Error | undefined)?.cause ?? {}) as NodeJS.ErrnoException;
  return REFUSED_CODES.has(code);
}

/** Exit code of a failure that is expected, whose message is printed alone; null for any other. */
export function exitCodeOf(error: unknown): number | null {
  if (error instanceof CliError) return error.exitCode;
  if (error instanceof UnreachableError || error instanceof AnswerError) return EXIT_FAILED;
  if (error instanceof OperationError) return error.operation.status === "CANCELLED" ? EXIT_INTERRUPTED : EXIT_FAILED;
  if (!(error instanceof ResponseError)) return null;
  // The appliance can never serve such a request: the command line is wrong.
  return error.code === "validation_error" || error.code === "invalid_path" ? EXIT_USAGE : EXIT_FAILED;
}

function tokenHint({ origins }: ClientConfig): string {
  if (origins.token !== null) return `\nThe token is from ${origins.token}`;
  return "\nSet COPPICE_TOKEN, or make a token: coppice token create --account NAME --save";
}

/** Bun's codes for a certificate of an unknown authority. */
const UNKNOWN_AUTHORITY = new Set([
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
]);

/** Replaces Bun's texts, which are about networks and its interface: usually the daemon is just not running. */
function reason(error: Error, { protocol }: URL): string {
  const { code } = error as NodeJS.ErrnoException;
  if (REFUSED_CODES.has(code)) return "connection refused; is coppice serve running?";
  if (code === "ECONNRESET") return `the connection was closed${protocol === "http:" ? "; does it want https?" : ""}`;
  if (UNKNOWN_AUTHORITY.has(code ?? "")) {
    return `${error.message}; COPPICE_CA_FILE names the PEM file of an authority of your own`;
  }
  if (error.name === "TimeoutError") return `no answer within ${EXCHANGE_TIMEOUT_MS / 1000} s`;
  return error.message;
}

/**
 * Does work whose exit code is that of a command in a sandbox.
 * @throws CliError with EXIT_NOT_RUN for a failure, whose own exit code would look like one of the command
 */
export async function orNotRun(work: () => Promise<number>): Promise<number> {
  return await work().catch((error: unknown) => {
    if (exitCodeOf(error) !== EXIT_FAILED) throw error;
    throw new CliError((error as Error).message, EXIT_NOT_RUN, { cause: error });
  });
}
