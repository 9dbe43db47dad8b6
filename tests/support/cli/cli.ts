import { runCommandLine } from "../../../src/cli/command-line.ts";
import { type HandledSignal, type Io, looksOf, type Terminal } from "../../../src/cli/io.ts";
import type { Environment } from "../../../src/config/config.ts";

export interface CliResult {
  readonly code: number;
  readonly stdout: Buffer;
  readonly stderr: string;
}

export interface CliOptions {
  readonly environment?: Environment;
  readonly stdin?: Uint8Array | ((signal?: AbortSignal) => AsyncIterable<Uint8Array>);
  /** gets the text of standard error */
  readonly stderr?: (text: string) => void;
  /** replaces standard output */
  readonly stdout?: (data: Buffer) => Promise<void>;
  readonly terminal?: boolean;
  /** the terminal that standard input is */
  readonly keys?: Terminal;
  /** width of standard output; null or absent when it is not a terminal */
  readonly columns?: number | null;
  /** receives a function that presses Ctrl-C */
  readonly interrupts?: (press: (signal: HandledSignal) => void) => void;
}

/** Runs one command line in this process, with streams of the test. */
export async function cli(argv: readonly string[], options: CliOptions = {}): Promise<CliResult> {
  const stdout: Buffer[] = [];
  const stderr: Buffer[] = [];
  const io: Io = {
    stdout: async (data) => {
      await options.stdout?.(Buffer.from(data));
      stdout.push(Buffer.from(data));
    },
    stderr: (data) => {
      stderr.push(Buffer.from(data));
      options.stderr?.(Buffer.from(data).toString("utf8"));
    },
    stderrBytes: async (data) => void stderr.push(Buffer.from(data)),
    stdin: async function* (signal) {
      if (typeof options.stdin === "function") yield* options.stdin(signal);
      else yield options.stdin ?? new Uint8Array(0);
    },
    stdinIsEmpty: options.stdin === undefined,
    stdoutIsTerminal: options.terminal ?? false,
    stderrIsTerminal: options.terminal ?? false,
    stdoutLooks: looksOf(options.terminal ?? false, options.environment ?? {}),
    stderrLooks: looksOf(options.terminal ?? false, options.environment ?? {}),
    columns: options.columns ?? null,
    terminal: options.keys ?? null,
    lingers: true,
    onSignal(signals, handler) {
      if (signals.includes("SIGINT" as never)) options.interrupts?.(handler as (signal: HandledSignal) => void);
      return { [Symbol.dispose]: () => undefined };
    },
  };
  const code = await runCommandLine(argv, io, options.environment ?? {});
  return { code, stdout: Buffer.concat(stdout), stderr: Buffer.concat(stderr).toString("utf8") };
}

/** A request to the scripted appliance. */
export interface SeenRequest {
  readonly method: string;
  /** below /v1, with the query */
  readonly path: string;
  readonly authorization: string | null;
  readonly lastEventId: string | null;
  readonly body: Buffer;
}

/** The appliance's side of a WebSocket. */
export type ScriptedSocket = Bun.ServerWebSocket<SeenRequest>;

type Answer = (request: SeenRequest) => Response | undefined | Promise<Response | undefined>;

/** Replaces an appliance, so that a test determines the answers to a client. */
export class ScriptedAppliance implements AsyncDisposable {
  readonly seen: SeenRequest[] = [];
  answer: Answer = () => undefined;
  /** accepts WebSockets; without it, a request for one is answered like any other */
  onSocket: ((socket: ScriptedSocket) => void) | null = null;
  readonly messages: Buffer[] = [];
  readonly #server: Bun.Server<SeenRequest>;

  constructor() {
    this.#server = Bun.serve({
      hostname: "127.0.0.1",
      port: 0,
      websocket: {
        open: (socket: ScriptedSocket) => this.onSocket?.(socket),
        message: (_, message) => void this.messages.push(Buffer.from(message)),
      },
      fetch: async (request, server) => {
        const url = new URL(request.url);
        const seen = {
          method: request.method,
          path: `${url.pathname.replace(/^\/v1/, "")}${url.search}`,
          authorization: request.headers.get("authorization"),
          lastEventId: request.headers.get("last-event-id"),
          body: Buffer.from(await request.arrayBuffer()),
        };
        this.seen.push(seen);
        const protocol = request.headers.get("sec-websocket-protocol");
        if (this.onSocket !== null && protocol !== null) {
          server.upgrade(request, { data: seen, headers: { "sec-websocket-protocol": protocol } });
          return undefined;
        }
        return (
          (await this.answer(seen)) ?? errorReply(404, "not_found", `the script has no ${seen.method} ${seen.path}`)
        );
      },
    });
  }

  get environment(): Environment {
    return { COPPICE_URL: `http://127.0.0.1:${this.#server.port}`, COPPICE_TOKEN: "t", HOME: "/nonexistent" };
  }

  /** JSON bodies of the requests with this method and path, in order. */
  bodies(method: string, path: string): unknown[] {
    return this.seen
      .filter((request) => request.method === method && request.path === path)
      .map(({ body }) => JSON.parse(body.toString("utf8")));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#server.stop(true);
  }
}

export function errorReply(status: number, error: string, message: string): Response {
  return Response.json({ error, message, details: {} }, { status });
}
