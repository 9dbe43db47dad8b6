import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { run as runTool } from "../../../src/system/exec.ts";
import { FrameDecoder } from "../../../src/vm/agent/frames.ts";
import {
  AddressKind,
  AgentFrame,
  FRAME_PAYLOAD_BYTES_MAX,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  NetworkFlag,
  Refusal,
  Stream,
} from "../../../src/vm/agent/protocol.ts";
import type { ByteChannel } from "../../../src/vm/vmm.ts";
import {
  type ExecRequest,
  execFrames,
  type Frame,
  frame,
  putOpen,
  syncFrame,
  u16,
  u32,
} from "../agent/native-agent.ts";
import { deadline } from "../waiting.ts";

const ROOT = join(import.meta.dir, "../../..");
const COMPILE_MS = 60_000;
const ANSWER_TIMEOUT_MS = 60_000;
/** DNS response code: the name does not exist. */
export const NO_SUCH_NAME = 3;

/**
 * Compiles `probe.c` to a program in the directory, and returns its path: static with musl, or dynamic with the C library of
 * this machine.
 */
export async function compileProbe(directory: string, library: "musl" | "glibc"): Promise<string> {
  const program = join(directory, `probe-${library}`);
  // musl-gcc has no kernel headers.
  const headers = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"];
  const compiler = library === "musl" ? ["musl-gcc", "-static", ...headers] : ["gcc"];
  const argv = [...compiler, "-s", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program];
  await runTool({ argv: [...argv, join(ROOT, "tests/support/guests/probe.c")], timeoutMs: COMPILE_MS });
  return program;
}

/** A destination that a program of the guest requests. */
export interface Wish {
  readonly kind: "name" | "address";
  /** a name, or an address as text of dots or of 8 groups */
  readonly host: string;
  readonly port: number;
}

/** A port of loopback to connect to, or the reason of a refusal; null leaves the request without an answer. */
export type Verdict = { readonly port: number } | { readonly refusal: number } | null;

/** Decides about a guest's requests. */
export interface Judge {
  open(wish: Wish): Verdict | Promise<Verdict>;
  /** a DNS response code; null leaves the query without an answer */
  resolve(name: string, type: number): number | null;
}

export interface RawResult {
  readonly exitCode: number;
  readonly stdout: string;
  readonly stderr: string;
}

interface Run {
  readonly output: [Buffer[], Buffer[]];
  readonly exit: PromiseWithResolvers<number>;
}

/** A connection of a guest's program, and the socket that it reaches. */
class Relay {
  readonly socket: Socket;
  #credit = INPUT_WINDOW_BYTES_INITIAL;
  #pending: Buffer[] = [];
  #ended = false;
  readonly #send: (bytes: Buffer) => void;
  readonly #session: number;

  constructor(session: number, port: number, send: (bytes: Buffer) => void) {
    this.#session = session;
    this.#send = send;
    this.socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    this.socket.on("connect", () => send(frame(HostFrame.netAccept, session)));
    this.socket.on("data", (chunk) => {
      this.#pending.push(Buffer.from(chunk));
      this.#flush();
    });
    this.socket.on("end", () => {
      this.#ended = true;
      this.#flush();
    });
    this.socket.on("error", (error) => {
      const refused = (error as NodeJS.ErrnoException).code === "ECONNREFUSED";
      send(refused ? frame(HostFrame.netRefuse, session, u32(Refusal.refused)) : frame(HostFrame.netReset, session));
    });
  }

  grant(bytes: number): void {
    this.#credit += bytes;
    this.#flush();
  }

  take(bytes: Buffer): void {
    this.socket.write(bytes, () =>
      this.#send(frame(HostFrame.window, this.#session, u32(Stream.data), u32(bytes.length))),
    );
  }

  #flush(): void {
    for (let first = this.#pending[0]; first !== undefined && this.#credit > 0; first = this.#pending[0]) {
      const piece = first.subarray(0, Math.min(first.length, this.#credit, 65_536));
      this.#credit -= piece.length;
      if (piece.length === first.length) this.#pending.shift();
      else this.#pending[0] = first.subarray(piece.length);
      this.#send(frame(HostFrame.netData, this.#session, piece));
    }
    if (this.#ended && this.#pending.length === 0) {
      this.#ended = false;
      this.#send(frame(HostFrame.netEnd, this.#session));
    }
  }
}

/** The host's side of an agent in frames, with its own judge, for tests of the agent that do not depend on the host. */
export class RawGuest {
  /** every request, in order */
  readonly wishes: Wish[] = [];
  /** every queried name, in order */
  readonly names: string[] = [];
  /** frame types of sessions that the guest opened, in order */
  readonly seen: number[] = [];
  judge: Judge = { open: () => ({ refusal: Refusal.denied }), resolve: () => NO_SUCH_NAME };
  readonly #channel: ByteChannel;
  readonly #decoder = new FrameDecoder();
  readonly #runs = new Map<number, Run>();
  readonly #relays = new Map<number, Relay>();
  readonly #answers = new Map<number, PromiseWithResolvers<Frame>>();
  #session = 0;

  constructor(channel: ByteChannel) {
    this.#channel = channel;
    channel.onData((chunk) => {
      if (chunk !== null)
        this.#decoder.push(chunk, (next) => this.#take({ ...next, payload: Buffer.from(next.payload) }));
      else this.#close();
    });
  }

  send(...bytes: readonly Uint8Array[]): void {
    this.#channel.write(Buffer.concat(bytes)).catch(() => undefined);
  }

  async sync(): Promise<void> {
    const answer = this.#await(0);
    this.send(syncFrame());
    await answer;
  }

  async request(type: number, ...payload: readonly Uint8Array[]): Promise<Frame> {
    const session = ++this.#session;
    const answer = this.#await(session);
    this.send(frame(type, session, ...payload));
    return await answer;
  }

  async mount(): Promise<void> {
    const answer = await this.request(HostFrame.mount, u16(1), u16(1));
    if (answer.type !== AgentFrame.done) throw new Error(answer.payload.toString("latin1"));
  }

  async put(path: string, bytes: Uint8Array, mode = 0o755): Promise<void> {
    const session = ++this.#session;
    const answer = this.#await(session);
    this.send(putOpen(session, path, bytes.length, mode));
    for (let at = 0; at < bytes.length; at += FRAME_PAYLOAD_BYTES_MAX) {
      this.send(frame(HostFrame.putData, session, bytes.subarray(at, at + FRAME_PAYLOAD_BYTES_MAX)));
    }
    const { type, payload } = await answer;
    if (type !== AgentFrame.done) throw new Error(payload.subarray(8).toString());
  }

  async network(flags: number = NetworkFlag.on): Promise<Frame> {
    const answer = this.#await(0);
    this.send(frame(HostFrame.network, 0, u32(flags)));
    return await answer;
  }

  /** Runs a command to its end. */
  async run(request: ExecRequest): Promise<RawResult> {
    const session = ++this.#session;
    const run: Run = { output: [[], []], exit: Promise.withResolvers<number>() };
    this.#runs.set(session, run);
    this.send(execFrames(session, { timeoutMs: ANSWER_TIMEOUT_MS, env: ["PATH=/bin"], ...request }));
    using _late = deadline(ANSWER_TIMEOUT_MS, () =>
      run.exit.reject(new Error(`${request.argv.join(" ")} does not end`)),
    );
    const exitCode = await run.exit.promise;
    const [stdout, stderr] = run.output.map((chunks) => Buffer.concat(chunks).toString()) as [string, string];
    return { exitCode, stdout, stderr };
  }

  shell(script: string): Promise<RawResult> {
    return this.run({ argv: ["/bin/sh", "-c", script] });
  }

  #await(session: number): Promise<Frame> {
    const answer = Promise.withResolvers<Frame>();
    this.#answers.set(session, answer);
    const late = deadline(ANSWER_TIMEOUT_MS, () => answer.reject(new Error("no answer in time")));
    return answer.promise.finally(() => late[Symbol.dispose]());
  }

  #close(): void {
    const error = new Error("the agent closed the stream");
    for (const answer of this.#answers.values()) answer.reject(error);
    for (const run of this.#runs.values()) run.exit.reject(error);
  }

  #take(next: Frame): void {
    if (next.session >= 0x8000_0000) this.#takeGuest(next);
    else if (this.#runs.has(next.session)) this.#takeRun(next, this.#runs.get(next.session) as Run);
    else if (next.type !== AgentFrame.hello && next.type !== AgentFrame.log) {
      this.#answers.get(next.session)?.resolve(next);
      this.#answers.delete(next.session);
    }
  }

  #takeRun({ type, session, payload }: Frame, run: Run): void {
    if (type === AgentFrame.output) {
      const stream = payload.readUInt32LE(0);
      run.output[stream - 1]?.push(payload.subarray(4));
      this.send(frame(HostFrame.window, session, u32(stream), u32(payload.length - 4)));
    } else if (type === AgentFrame.exit) {
      this.send(frame(HostFrame.forget, session));
      run.exit.resolve(payload.readUInt32LE(4));
    } else if (type === AgentFrame.error) {
      run.exit.reject(new Error(payload.subarray(8).toString()));
    }
  }

  #takeGuest({ type, session, payload }: Frame): void {
    this.seen.push(type);
    const relay = this.#relays.get(session);
    switch (type) {
      case AgentFrame.resolve: {
        const name = payload.subarray(2).toString();
        this.names.push(name);
        const code = this.judge.resolve(name, payload.readUInt16LE(0));
        if (code !== null) this.send(frame(HostFrame.resolved, session, u32(code)));
        return;
      }
      case AgentFrame.netOpen:
        void this.#open(session, wishOf(payload));
        return;
      case AgentFrame.netData:
        relay?.take(payload);
        return;
      case AgentFrame.netEnd:
        relay?.socket.end();
        return;
      case AgentFrame.window:
        relay?.grant(payload.readUInt32LE(4));
        return;
      case AgentFrame.netReset:
        relay?.socket.resetAndDestroy();
        this.#relays.delete(session);
        return;
      case AgentFrame.done:
        this.#relays.delete(session);
    }
  }

  async #open(session: number, wish: Wish): Promise<void> {
    this.wishes.push(wish);
    const verdict = await this.judge.open(wish);
    if (verdict === null) return;
    if ("refusal" in verdict) this.send(frame(HostFrame.netRefuse, session, u32(verdict.refusal)));
    else this.#relays.set(session, new Relay(session, verdict.port, (bytes) => this.send(bytes)));
  }
}

/** The request of a NET_OPEN frame. */
export function wishOf(payload: Buffer): Wish {
  const [port, kind, host] = [payload.readUInt16LE(0), payload[2], payload.subarray(4)];
  if (kind === AddressKind.name) return { kind: "name", host: host.toString(), port };
  if (kind === AddressKind.ipv4) return { kind: "address", host: [...host].join("."), port };
  const groups = Array.from({ length: 8 }, (_, index) => host.readUInt16BE(index * 2).toString(16));
  return { kind: "address", host: groups.join(":"), port };
}

/** Commands that wait in the guest until a program there has the port. */
export function untilBound(protocol: "tcp" | "udp", port: number): string {
  const place = `:${port.toString(16).toUpperCase().padStart(4, "0")} 0*:0000 ${protocol === "tcp" ? "0A" : "07"}`;
  return `until busybox grep -qs "${place}" /proc/net/${protocol} /proc/net/${protocol}6; do :; done`;
}
