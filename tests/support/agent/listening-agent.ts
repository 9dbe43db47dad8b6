import { type ChildProcess, spawnSync } from "node:child_process";
import { closeSync, readFileSync } from "node:fs";
import { createConnection } from "node:net";
import { join } from "node:path";
import { listenUnix } from "../../../src/system/unix-sockets.ts";
import { AgentFrame, HostFrame, PROTOCOL_VERSION, SESSION_BYTES } from "../../../src/vm/agent/protocol.ts";
import { AgentStream, type Frame, frame, syncFrame, u16, u32, u64 } from "./agent-stream.ts";
import { agentDirectory, buildNativeAgent, reportsIn, spawnAgent } from "./native-agent.ts";

/** A session in the list of RESUMED. */
export interface ListedSession {
  readonly id: number;
  readonly target: number;
  readonly flags: number;
  readonly pid: number;
  readonly tag: number;
  readonly stdinBytes: number;
  readonly stdinCredit: number;
  readonly stdoutFrom: number;
  readonly stderrFrom: number;
  readonly ranMs: number;
  readonly keptBytes: number;
  readonly limitMs: number;
}

export function resumeFrame(nonce: bigint, version = PROTOCOL_VERSION): Buffer {
  return frame(HostFrame.resume, 0, u32(version), u32(0), u64(nonce));
}

/** The list of a RESUMED. @throws Error when it is malformed, or answers another nonce */
export function parseResumed({ type, payload }: Frame, nonce: bigint): ListedSession[] {
  if (type !== AgentFrame.resumed) throw new Error(`a frame of type ${type}: ${payload.toString("latin1")}`);
  if (payload.readBigUInt64LE() !== nonce) throw new Error("an answer to another RESUME");
  const count = payload.readUInt32LE(12);
  if (payload.length !== 16 + count * SESSION_BYTES) throw new Error(`${count} sessions in ${payload.length} bytes`);
  return Array.from({ length: count }, (_, index) => {
    const at = payload.subarray(16 + index * SESSION_BYTES);
    const words = Array.from({ length: 6 }, (_, field) => at.readUInt32LE(4 * field));
    const [id = 0, target = 0, flags = 0, pid = 0, tag = 0, zero = 0] = words;
    if (zero !== 0) throw new Error("a reserved field is not zero");
    const numbers = Array.from({ length: 7 }, (_, field) => Number(at.readBigUInt64LE(24 + 8 * field)));
    const [stdinBytes = 0, stdinCredit = 0, stdoutFrom = 0, stderrFrom = 0, ranMs = 0, keptBytes = 0, limitMs = 0] =
      numbers;
    return { id, target, flags, pid, tag, stdinBytes, stdinCredit, stdoutFrom, stderrFrom, ranMs, keptBytes, limitMs };
  });
}

/** The agent's native build with a listening socket, to which hosts connect one after another. */
export class ListeningAgent implements AsyncDisposable {
  readonly directory = agentDirectory();
  readonly exited: Promise<number | null>;
  readonly #path = join(this.directory, "agent.sock");
  readonly #child: ChildProcess;
  #nonce = 0n;

  private constructor() {
    const listener = listenUnix(this.#path);
    this.#child = spawnAgent(this.directory, "listen:3", listener);
    closeSync(listener);
    this.exited = new Promise((done) => void this.#child.on("exit", (code) => done(code)));
  }

  /** An agent with mounted disks, and the host that mounted them. */
  static async mounted(): Promise<{ agent: ListeningAgent; host: AgentStream }> {
    await buildNativeAgent();
    const agent = new ListeningAgent();
    const host = await agent.connect();
    host.send(syncFrame(), frame(HostFrame.mount, 1, u16(1), u16(1)));
    for (const type of [AgentFrame.synced, AgentFrame.done]) {
      const answer = await host.next();
      if (answer.type !== type) throw new Error(`a frame of type ${answer.type}`);
    }
    return { agent, host };
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** Processor time of the agent so far, in ticks of 10 ms. */
  cpuTicks(): number {
    const [user, system] = readFileSync(`/proc/${this.pid}/stat`, "latin1").split(" ").slice(13, 15);
    return Number(user) + Number(system);
  }

  /** A host after HELLO. */
  async connect(): Promise<AgentStream> {
    const host = new AgentStream(createConnection(this.#path));
    const hello = await host.next();
    if (hello.type !== AgentFrame.hello) throw new Error(`the first frame is of type ${hello.type}`);
    return host;
  }

  /** A host after RESUME, and the sessions that are left. */
  async resume(): Promise<{ host: AgentStream; sessions: ListedSession[] }> {
    const host = await this.connect();
    this.#nonce += 1n;
    host.send(resumeFrame(this.#nonce));
    return { host, sessions: parseResumed(await host.next(), this.#nonce) };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.exited;
    const reports = reportsIn(this.directory);
    spawnSync("rm", ["-rf", this.directory], { timeout: 20_000 });
    if (reports.length > 0) throw new Error(`sanitizers: ${reports.join("\n")}`);
  }
}
