import { ApiError } from "../../../domain/errors.ts";
import type { TerminalSize } from "../../../domain/spawn.ts";
import type { RunningProcess } from "../../../service/running/followed.ts";
import type { Envd } from "../envd-access.ts";
import { placeOf } from "../files/place.ts";
import { userNameIn } from "../files/users.ts";
import type { E2bParts } from "../options.ts";
import { type RpcCall, type StreamMethod, timeoutMsOf, type UnaryMethod } from "../rpc/connect.ts";
import { RpcError } from "../rpc/errors.ts";
import {
  enumeration,
  flag,
  optionalBytes,
  optionalMessage,
  optionalText,
  type RpcMessage,
  uint32,
} from "../rpc/message.ts";
import { commandOf, configIn, type ProcessConfig } from "./config.ts";
import { sendEvents } from "./events.ts";

const SIGNALS = { SIGNAL_UNSPECIFIED: 0, SIGNAL_SIGTERM: 15, SIGNAL_SIGKILL: 9 };
const TERMINAL_SIZE_MAX = 65_535;
const TERMINAL_DEFAULT: TerminalSize = { rows: 24, columns: 80 };
/** A longer configuration is not kept: the process is listed with the part that the service logs. */
const CONFIG_CHARACTERS_MAX = 65_536;

/** The part of a running process that only its client knows. */
interface Facts {
  readonly tag: string | null;
  readonly config: ProcessConfig | null;
}

/** The methods of the service process.Process, by their names. */
export interface ProcessMethods {
  readonly unary: Readonly<Record<string, UnaryMethod>>;
  readonly start: StreamMethod;
  readonly connect: StreamMethod;
  readonly streamInput: (call: Omit<RpcCall, "message">, next: () => Promise<RpcMessage | null>) => Promise<object>;
}

/** The methods for all sandboxes. */
export function processMethods(parts: E2bParts): ProcessMethods {
  const methods = new Methods(parts);
  return {
    start: (call, send) => methods.start(call, send),
    connect: (call, send) => methods.connect(call, send),
    streamInput: (call, next) => methods.streamInput(call, next),
    unary: {
      List: async (call) => methods.list(call),
      Update: (call) => methods.update(call),
      SendInput: (call) => methods.sendInput(call),
      CloseStdin: (call) => methods.closeStdin(call),
      SendSignal: (call) => methods.sendSignal(call),
    },
  };
}

/** The methods, and what clients said of the processes that run. */
class Methods {
  readonly #parts: E2bParts;
  readonly #facts = new WeakMap<object, Facts>();

  constructor(parts: E2bParts) {
    this.#parts = parts;
  }

  async start(call: RpcCall, send: (message: object) => Promise<void>): Promise<void> {
    const { envd, message, request, signal } = call;
    const config = configIn(message);
    const place = { ...(await placeOf(this.#parts, request, userNameIn(request.headers))), signal };
    const command = await commandOf(this.#parts, place, config);
    const pty = optionalMessage(message, "pty");
    const streams = { stdinOpen: pty !== null || flag(message, "stdin", true), terminal: sizeIn(pty) };
    const limited = { ...command, ...streams, timeoutMs: timeoutMsOf(request), lingers: true };
    const process = await this.#processes.run(envd.principal, envd.target, limited, signal);
    const isKept = JSON.stringify(config).length <= CONFIG_CHARACTERS_MAX;
    this.#facts.set(process.identity, { tag: optionalText(message, "tag"), config: isKept ? config : null });
    await sendEvents(this.#parts, call, process, send);
  }

  async connect(call: RpcCall, send: (message: object) => Promise<void>): Promise<void> {
    const { envd, message } = call;
    const process = await this.#processes.follow(envd.principal, this.#name(envd, this.#find(envd, message)));
    await sendEvents(this.#parts, call, process, send);
  }

  async streamInput(call: Omit<RpcCall, "message">, next: () => Promise<RpcMessage | null>): Promise<object> {
    let process: RunningProcess | null = null;
    for (let message = await next(); message !== null; message = await next()) {
      const start = optionalMessage(message, "start");
      const data = optionalMessage(message, "data");
      if (start !== null) process = this.#find(call.envd, start);
      if (data === null) continue;
      if (process === null) throw new RpcError("invalid_argument", "data came before the start");
      await this.#write(call, process, data);
    }
    return {};
  }

  list({ envd }: RpcCall): object {
    const running = this.#processes.running(envd.principal, envd.target);
    return { processes: running.map((process) => listed(process, this.#facts.get(process.identity))) };
  }

  async update({ envd, message }: RpcCall): Promise<object> {
    const process = this.#find(envd, message);
    const size = sizeIn(optionalMessage(message, "pty"));
    if (size !== undefined) await this.#processes.resize(envd.principal, this.#name(envd, process), size);
    return {};
  }

  async sendInput(call: RpcCall): Promise<object> {
    await this.#write(call, this.#find(call.envd, call.message), call.message);
    return {};
  }

  async closeStdin({ envd, message, signal }: RpcCall): Promise<object> {
    const process = this.#find(envd, message);
    if (process.hasTerminal) throw new RpcError("unknown", "the input of a terminal cannot be closed");
    const request = { ...this.#name(envd, process), content: [], close: true, signal };
    await this.#processes.write(envd.principal, request).catch(closedInput);
    return {};
  }

  async sendSignal({ envd, message }: RpcCall): Promise<object> {
    const process = this.#find(envd, message);
    const signal = enumeration(message, "signal", SIGNALS);
    if (signal !== SIGNALS.SIGNAL_SIGTERM && signal !== SIGNALS.SIGNAL_SIGKILL) {
      throw new RpcError("unimplemented", `invalid signal: ${signal}`);
    }
    await this.#processes.signal(envd.principal, this.#name(envd, process), signal);
    return {};
  }

  get #processes() {
    return this.#parts.service.processes;
  }

  #name(envd: Envd, { spid }: RunningProcess) {
    return { id: envd.target, spid };
  }

  /** The running process that a message selects. @throws RpcError `not_found` */
  #find(envd: Envd, message: RpcMessage): RunningProcess {
    const selector = optionalMessage(message, "process") ?? {};
    const tag = optionalText(selector, "tag");
    const pid = uint32(selector, "pid");
    const isSelected = (process: RunningProcess) =>
      tag === null ? process.pid === pid : this.#facts.get(process.identity)?.tag === tag;
    const selected = this.#processes.running(envd.principal, envd.target).findLast(isSelected);
    if (selected !== undefined) return selected;
    throw new RpcError("not_found", `process with ${tag === null ? `pid ${pid}` : `tag ${tag}`} not found`);
  }

  async #write(
    { envd, signal }: Pick<RpcCall, "envd" | "signal">,
    process: RunningProcess,
    message: RpcMessage,
  ): Promise<void> {
    const kind = process.hasTerminal ? "pty" : "stdin";
    const bytes = optionalBytes(optionalMessage(message, "input") ?? {}, kind);
    if (bytes === null) throw new RpcError("internal", `the process takes its input as ${kind}`);
    const request = { ...this.#name(envd, process), content: [bytes], close: false, signal };
    await this.#processes.write(envd.principal, request).catch(closedInput);
  }
}

function listed({ pid, command, args, cwd }: RunningProcess, facts: Facts | undefined): object {
  const config = facts?.config ?? { cmd: command, args, envs: {}, cwd };
  return { config, pid, ...(facts === undefined || facts.tag === null ? {} : { tag: facts.tag }) };
}

/** The size of a terminal; undefined: there is none. */
function sizeIn(pty: RpcMessage | null): TerminalSize | undefined {
  if (pty === null) return undefined;
  const size = optionalMessage(pty, "size") ?? {};
  const side = (name: string, fallback: number) => Math.min(uint32(size, name) || fallback, TERMINAL_SIZE_MAX);
  return { rows: side("rows", TERMINAL_DEFAULT.rows), columns: side("cols", TERMINAL_DEFAULT.columns) };
}

/** The input of a process that takes none. @throws RpcError `internal`; `error`, if it says something else */
function closedInput(error: unknown): never {
  if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
  throw new RpcError("internal", error.message, { cause: error });
}
