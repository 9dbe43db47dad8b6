import { ApiError } from "../../domain/errors.ts";
import type { Reclaimed } from "../../domain/operator/reclaimed.ts";
import type { RunningWork } from "../../domain/operator/restart.ts";
import type { Log } from "../../log.ts";
import { STATUS_OF_ERROR } from "../errors.ts";
import { isSocketPath, serveLocally } from "./local-server.ts";

/** Time limit of a command: removing the layers of a long chain takes minutes on a slow disk. */
const CALL_MS_MAX = 3_600_000;
/** Time limit of a question. */
const ANSWER_MS_MAX = 30_000;

/** A stop of the daemon. */
export interface StopRequest {
  /** true: instances end, also where a stop leaves them */
  readonly all: boolean;
  /**
   * true: the daemon exits when it gets a signal, which the service manager is about to send: it would start a daemon again
   * that exits by itself
   */
  readonly awaitsSignal: boolean;
}

/** Commands of the operator to a running daemon. They affect all accounts, so no token allows them. */
export interface OperatorCommands {
  gc(dryRun: boolean): Promise<Reclaimed>;
  running(): Promise<RunningWork>;
  /** Begins to stop the daemon. @throws ApiError `conflict` when it stops already, and leaves what `request` would end */
  stop(request: StopRequest): Promise<void>;
  /** Lets no new work begin until disposal: it waits. */
  hold(): Promise<Disposable>;
}

type Query = Readonly<Record<string, boolean>>;
type Handler = (query: Query, signal: AbortSignal) => Promise<Response>;

/** A command by its path, with its parameters, which are true or false. */
interface Route {
  readonly method: "GET" | "POST";
  readonly parameters: readonly string[];
  readonly handle: Handler;
}

/**
 * Listens for the operator's commands on a socket in the data directory, which only its owner can enter, until it is
 * disposed. When the path is too long for a socket, it logs a warning and does not listen.
 */
export async function listenForOperator(path: string, commands: OperatorCommands, log: Log): Promise<AsyncDisposable> {
  if (!isSocketPath(path)) {
    log.warn("the data directory's path is too long for a control socket: `coppice gc` and `coppice stop` need one", {
      path,
    });
    return new AsyncDisposableStack();
  }
  const routes = routesOf(commands);
  return await serveLocally(path, {
    async fetch(request) {
      const { pathname, searchParams } = new URL(request.url);
      const route = routes.get(pathname.slice(1));
      if (route === undefined) throw new ApiError("not_found", "there is no such command");
      if (request.method !== route.method)
        throw new ApiError("method_not_allowed", `this command needs ${route.method}`);
      return await route.handle(queryOf(searchParams, route.parameters), request.signal);
    },
    error(error) {
      if (error instanceof ApiError) return Response.json(error.body(), { status: STATUS_OF_ERROR[error.code] });
      log.error("an operator command failed", { error });
      return Response.json({ message: error.message }, { status: 500 });
    },
  });
}

function routesOf(commands: OperatorCommands): ReadonlyMap<string, Route> {
  const gc: Route = {
    method: "POST",
    parameters: ["dry_run"],
    handle: async ({ dry_run: dryRun = false }) => Response.json(await commands.gc(dryRun)),
  };
  const running: Route = {
    method: "GET",
    parameters: [],
    handle: async () => Response.json(await commands.running()),
  };
  const stop: Route = {
    method: "POST",
    parameters: ["all", "awaits_signal"],
    async handle({ all = false, awaits_signal: awaitsSignal = false }) {
      await commands.stop({ all, awaitsSignal });
      return new Response(null, { status: 202 });
    },
  };
  const hold: Route = {
    method: "POST",
    parameters: [],
    handle: async (_, signal) => untilLeft(await commands.hold(), signal),
  };
  return new Map(Object.entries({ gc, running, stop, hold }));
}

/** @throws ApiError `validation_error` for a parameter that is unknown, given twice, or neither true nor false */
function queryOf(search: URLSearchParams, names: readonly string[]): Query {
  const query: Record<string, boolean> = {};
  for (const [name, value] of search) {
    const field = { field: name };
    if (!names.includes(name)) throw new ApiError("validation_error", "there is no such parameter", field);
    if (name in query) throw new ApiError("validation_error", "the parameter is given twice", field);
    if (value !== "true" && value !== "false") throw new ApiError("validation_error", "must be true or false", field);
    query[name] = value === "true";
  }
  return query;
}

/** An answer that begins now and lasts until the client leaves; then `held` is disposed. */
function untilLeft(held: Disposable, signal: AbortSignal): Response {
  let isHeld = true;
  const leave = (): void => {
    if (isHeld) held[Symbol.dispose]();
    isHeld = false;
  };
  signal.addEventListener("abort", leave, { once: true });
  const body = new ReadableStream({
    start: (controller) => controller.enqueue(Buffer.from("held\n")),
    cancel: leave,
  });
  if (signal.aborted) leave();
  return new Response(body);
}

/** Asks the running daemon to reclaim space; null when none listens on `path`. */
export async function askForGc(path: string, dryRun: boolean): Promise<Reclaimed | null> {
  const response = await ask(path, { method: "POST", command: `gc?dry_run=${dryRun}`, timeoutMs: CALL_MS_MAX });
  if (response === null) return null;
  const body = (await response.json()) as Reclaimed & { message?: string };
  if (!response.ok) throw new Error(`the appliance failed to reclaim space: ${body.message}`);
  return body;
}

/** The work of the running daemon; null when none listens on `path`. @throws OlderDaemonError; Error of the daemon */
export async function askForRunning(path: string): Promise<RunningWork | null> {
  const response = await ask(path, { method: "GET", command: "running", timeoutMs: ANSWER_MS_MAX });
  return response === null ? null : ((await accepted(response)).json() as Promise<RunningWork>);
}

/** Asks the running daemon to stop; false when none listens on `path`. @throws OlderDaemonError; Error of the daemon */
export async function askToStop(path: string, { all, awaitsSignal }: StopRequest): Promise<boolean> {
  const command = `stop?all=${all}&awaits_signal=${awaitsSignal}`;
  const response = await ask(path, { method: "POST", command, timeoutMs: ANSWER_MS_MAX });
  if (response !== null) await accepted(response);
  return response !== null;
}

/**
 * Asks the running daemon to begin no new work, until disposal or the end of this process.
 * @returns null when none listens on `path`
 * @throws OlderDaemonError; Error of the daemon
 */
export async function askToHold(path: string): Promise<Disposable | null> {
  const over = new AbortController();
  const response = await ask(path, { method: "POST", command: "hold", signal: over.signal });
  if (response === null) return null;
  const reader = (await accepted(response)).body?.getReader();
  // The daemon has answered when it holds.
  await reader?.read();
  return { [Symbol.dispose]: () => over.abort() };
}

/** The running daemon is of a version that does not know the command. */
export class OlderDaemonError extends Error {
  override readonly name = "OlderDaemonError";
}

interface Question {
  readonly method: "GET" | "POST";
  readonly command: string;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

/** The answer of the daemon that listens on `path`; null when none does. */
async function ask(path: string, { method, command, timeoutMs, signal }: Question): Promise<Response | null> {
  const limit = timeoutMs === undefined ? signal : AbortSignal.timeout(timeoutMs);
  const init = { method, unix: path, ...(limit === undefined ? {} : { signal: limit }) };
  return await fetch(`http://localhost/${command}`, init).catch((error: NodeJS.ErrnoException) => {
    if (NOBODY_LISTENS.has(error.code ?? "")) return null;
    throw error;
  });
}

async function accepted(response: Response): Promise<Response> {
  if (response.ok) return response;
  const text = await response.text();
  if (response.status === 404) throw new OlderDaemonError("the running appliance is of an older version");
  throw new Error(messageIn(text) ?? `the appliance answered ${response.status}`);
}

/** The message of an error body; null when there is none. */
function messageIn(text: string): string | null {
  try {
    const { message } = JSON.parse(text) as { message?: unknown };
    return typeof message === "string" ? message : null;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return null;
  }
}

const NOBODY_LISTENS: ReadonlySet<string> = new Set([
  "ENOENT",
  "ECONNREFUSED",
  "ConnectionRefused",
  "FailedToOpenSocket",
]);
