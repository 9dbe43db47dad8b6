import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync } from "node:fs";
import type { Socket } from "node:net";
import { join, resolve } from "node:path";
import { AgentFrame, HostFrame } from "../../../src/vm/agent/protocol.ts";
import { deadline } from "../waiting.ts";
import { AgentStream, type Frame, frame, syncFrame, u16, u32, u64 } from "./agent-stream.ts";

export { AgentStream, type Frame, frame, syncFrame, u16, u32, u64 };

const ROOT = resolve(import.meta.dir, "../../..");
/** The program that `buildNativeAgent` builds. */
export const NATIVE_AGENT = join(ROOT, "build/agent/agent-native");
const BUILD_TIMEOUT_MS = 120_000;
const EXIT_TIMEOUT_MS = 20_000;
/** Exit statuses of the agent: the host closed the stream, or sent malformed frames. */
export const EXIT_CLOSED = 0;
export const EXIT_REFUSED = 3;

export interface Ended {
  readonly code: number | null;
  readonly signal: string | null;
}

/** Fields of EXEC_OPEN in addition to the specification's size; without any, it is a plain command as root. */
export interface ExecHead {
  readonly flags?: number;
  readonly timeoutMs?: number | bigint;
  readonly main?: number;
  readonly uid?: number;
  readonly gid?: number;
  readonly rows?: number;
  readonly columns?: number;
  readonly tag?: number;
}

export function execOpen(session: number, specBytes: number, head: ExecHead = {}): Buffer {
  const words = [head.main ?? 0, head.uid ?? 0, head.gid ?? 0].map(u32);
  const size = [u16(head.rows ?? 0), u16(head.columns ?? 0), u32(head.tag ?? 0)];
  const first = [u32(specBytes), u32(head.flags ?? 0), u64(head.timeoutMs ?? 15_000)];
  return frame(HostFrame.execOpen, session, ...first, ...words, ...size);
}

export function putOpen(session: number, path: string | Uint8Array, sizeBytes: number | bigint, mode = 0o644): Buffer {
  return frame(HostFrame.putOpen, session, u32(mode), u32(0), u32(0), u32(0), u64(sizeBytes), Buffer.from(path));
}

export function signalFrame(session: number, number: number, flags = 0): Buffer {
  return frame(HostFrame.signal, session, u32(number), u32(flags));
}

export interface ExecRequest extends Omit<ExecHead, "flags" | "timeoutMs"> {
  readonly argv: readonly (string | Uint8Array)[];
  readonly env?: readonly string[];
  readonly cwd?: string;
  readonly hostname?: string;
  /** resolved by the agent */
  readonly user?: string;
  readonly timeoutMs?: number;
  readonly stdin?: boolean;
  /** with `rows` and `columns` */
  readonly terminal?: boolean;
  /** no program: the agent only waits for a signal */
  readonly idle?: boolean;
  readonly linger?: boolean;
}

export function execSpec(request: ExecRequest): Buffer {
  const text = (value: string | Uint8Array): Buffer => {
    const bytes = Buffer.from(value);
    return Buffer.concat([u32(bytes.length), bytes]);
  };
  const env = request.env ?? ["PATH=/usr/bin:/bin"];
  const names = [request.hostname ?? "box", request.user ?? "", request.cwd ?? "/"];
  const head = [...names.map(text), u32(request.argv.length)];
  return Buffer.concat([...head, ...request.argv.map(text), u32(env.length), ...env.map(text)]);
}

/** The frames that start a command, with the specification in pieces of `pieceBytes`. */
export function execFrames(session: number, request: ExecRequest, pieceBytes = 65_536): Buffer {
  const spec = execSpec(request);
  const streams = (request.stdin === true ? 1 : 0) | (request.terminal === true ? 2 : 0);
  const flags = streams | (request.idle === true ? 4 : 0) | (request.linger === true ? 8 : 0);
  const frames = [execOpen(session, spec.length, { ...request, flags })];
  for (let at = 0; at < spec.length; at += pieceBytes) {
    frames.push(frame(HostFrame.execSpec, session, spec.subarray(at, at + pieceBytes)));
  }
  return Buffer.concat(frames);
}

let built: Promise<void> | null = null;

/** Builds the agent with sanitizers, once for all tests of a process. */
export function buildNativeAgent(): Promise<void> {
  built ??= new Promise((done, fail) => {
    const make = spawn("make", ["-s", "-C", "vm-assets/agent", "native"], {
      cwd: ROOT,
      stdio: ["ignore", "ignore", "inherit"],
      timeout: BUILD_TIMEOUT_MS,
    });
    make.on("error", fail);
    make.on("exit", (code) => (code === 0 ? done() : fail(new Error(`the native agent does not build: make ${code}`))));
  });
  return built;
}

/** Starts the program in a directory in place of its disks; its descriptor 3 is `line`. */
export function spawnAgent(directory: string, argument: string, line: "pipe" | number): ChildProcess {
  const log = `log_path=${join(directory, "sanitizer")}`;
  return spawn(NATIVE_AGENT, [argument, directory], {
    stdio: ["ignore", "ignore", "ignore", line],
    env: { PATH: "/usr/bin:/bin", ASAN_OPTIONS: `${log}:detect_leaks=0`, UBSAN_OPTIONS: `${log}:print_stacktrace=1` },
  });
}

/** A directory with l/00/upper, s/upper and r. */
export function agentDirectory(): string {
  // In the directory of the program, not in /tmp: a tmpfs reports no extents.
  const directory = mkdtempSync(join(ROOT, "build/agent/run-"));
  for (const path of ["l/00/upper", "s/upper", "r"]) mkdirSync(join(directory, path), { recursive: true });
  return directory;
}

/** The sanitizers' reports on the agent and its children. */
export function reportsIn(directory: string): string[] {
  const names = readdirSync(directory).filter((name) => name.startsWith("sanitizer"));
  return names.map((name) => readFileSync(join(directory, name), "utf8"));
}

/** The agent's native build at the other end of a socket, with a directory in place of its disks. */
export class NativeAgent extends AgentStream implements AsyncDisposable {
  /** contains l/00/upper, s/upper and r */
  readonly directory: string;
  readonly exited: Promise<Ended>;
  readonly #child: ChildProcess;

  private constructor(directory: string, child: ChildProcess) {
    super(child.stdio[3] as Socket);
    this.directory = directory;
    this.#child = child;
    this.exited = new Promise((done, fail) => {
      child.on("error", fail);
      child.on("exit", (code, signal) => done({ code, signal }));
    });
  }

  /** Starts an agent and reads its HELLO. `prepare` may add files to its directory before. */
  static async start(prepare: (directory: string) => void = () => undefined): Promise<NativeAgent> {
    await buildNativeAgent();
    const directory = agentDirectory();
    prepare(directory);
    const agent = new NativeAgent(directory, spawnAgent(directory, "3", "pipe"));
    const hello = await agent.next();
    if (hello.type !== AgentFrame.hello) throw new Error(`the first frame is of type ${hello.type}`);
    return agent;
  }

  /** An agent after SYNC and MOUNT. */
  static async mounted(): Promise<NativeAgent> {
    const agent = await NativeAgent.start();
    agent.send(syncFrame(), frame(HostFrame.mount, 1, u16(1), u16(1)));
    for (const type of [AgentFrame.synced, AgentFrame.done]) {
      const answer = await agent.next();
      if (answer.type !== type) throw new Error(`a frame of type ${answer.type}: ${answer.payload.toString("latin1")}`);
    }
    return agent;
  }

  /** Processor time of the agent so far, in ticks of 10 ms. */
  cpuTicks(): number {
    const [user, system] = readFileSync(`/proc/${this.pid}/stat`, "latin1").split(" ").slice(13, 15);
    return Number(user) + Number(system);
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** The sanitizers' reports on the agent and its children. */
  reports(): string[] {
    return reportsIn(this.directory);
  }

  /** Closes the stream and waits for the end. @throws Error on a sanitizer's report or another exit status */
  async close(): Promise<Ended> {
    this.cut();
    using _late = deadline(EXIT_TIMEOUT_MS, () => this.#child.kill("SIGKILL"));
    const ended = await this.exited;
    const reports = this.reports();
    if (reports.length > 0) throw new Error(`sanitizers: ${reports.join("\n")}`);
    if (ended.code !== EXIT_CLOSED && ended.code !== EXIT_REFUSED) {
      throw new Error(`the agent ended with ${ended.code ?? ended.signal}`);
    }
    return ended;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.close();
    } finally {
      // rm can remove trees whose paths are too long for a system call.
      spawnSync("rm", ["-rf", this.directory], { timeout: EXIT_TIMEOUT_MS });
    }
  }
}

/** The errno and text of an ERROR frame. */
export function parseError({ type, payload }: Frame): { errno: number; text: string } {
  if (type !== AgentFrame.error) throw new Error(`a frame of type ${type}, not an error`);
  return { errno: payload.readUInt32LE(0), text: payload.subarray(8).toString("utf8") };
}

export interface Outcome {
  /** as wait(2) returns it */
  readonly status: number;
  /** user and system time in µs, largest resident set in KiB, and so on: see AgentFrame.exit */
  readonly usage: readonly number[];
  readonly exitCode: number;
  readonly flags: number;
  readonly wallUs: bigint;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
}

/** Collects a command's output until its EXIT, and grants credit for all of it; frames of other sessions are dropped. */
export async function collect(agent: AgentStream, session: number): Promise<Outcome> {
  const streams: Buffer[][] = [[], [], []];
  let started = false;
  for (;;) {
    const { type, session: of, payload } = await agent.next();
    if (of !== session) continue;
    if (type === AgentFrame.started) {
      started = true;
    } else if (type === AgentFrame.output) {
      if (!started) throw new Error("output before STARTED");
      const stream = payload.readUInt32LE(0);
      streams[stream]?.push(payload.subarray(4));
      agent.send(frame(HostFrame.window, session, u32(stream), u32(payload.length - 4)));
    } else if (type === AgentFrame.exit) {
      agent.send(frame(HostFrame.forget, session));
      const [stdout, stderr] = [Buffer.concat(streams[1] ?? []), Buffer.concat(streams[2] ?? [])];
      const [flags, exitCode] = [payload.readUInt32LE(0), payload.readUInt32LE(4)];
      const status = payload.readUInt32LE(32);
      const usage = Array.from({ length: 9 }, (_, index) => Number(payload.readBigUInt64LE(40 + index * 8)));
      return { exitCode, flags, status, usage, wallUs: payload.readBigUInt64LE(24), stdout, stderr };
    } else if (type !== AgentFrame.window) {
      throw new Error(`a frame of type ${type}: ${payload.toString("latin1")}`);
    }
  }
}

/** Runs one command to its end. */
export async function execute(agent: AgentStream, request: ExecRequest, session = 7): Promise<Outcome> {
  agent.send(execFrames(session, request));
  return await collect(agent, session);
}
