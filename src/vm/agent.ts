import type { GuestPath } from "../domain/guest-path.ts";
import { byteStringToBytes } from "../domain/guest-path.ts";
import { AgentClosedError, AgentError, AgentProtocolError } from "./agent-errors.ts";
import {
  type AgentExit,
  ExecSession,
  guestText,
  IndexSession,
  type OutputStream,
  ReplySession,
  type Session,
} from "./agent-sessions.ts";
import { encodeFrame, type Frame, FrameDecoder, packIntegers, viewOf } from "./frames.ts";
import * as protocol from "./protocol.ts";
import { AgentFrame, HostFrame } from "./protocol.ts";
import type { ByteChannel } from "./vmm.ts";

export { AgentClosedError, AgentError, type AgentExit, AgentProtocolError };

const NO_BYTES = new Uint8Array(0);
/** Lines that one guest may add to the host's log. */
const LOG_LINES_MAX = 200;
const ERRNO_TOO_BIG = 7;

export interface AgentExecSpec {
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  readonly hostname: string;
  readonly timeoutMs: number;
  /** read as the command takes it, and left when the command ends; absent: /dev/null */
  readonly stdin?: AsyncIterable<Uint8Array> | Iterable<Uint8Array>;
}

/** A running command. Both promises reject when the agent fails or is lost. */
export interface ExecHandle {
  readonly started: Promise<void>;
  readonly exit: Promise<AgentExit>;
  /** Sends a signal to the command; without effect once it ended. */
  signal(number: number): void;
}

export interface AgentOptions {
  /** takes what the guest wants to tell the operator */
  readonly log?: (text: string) => void;
}

/**
 * Client of the agent in a guest. Requests may be sent without waiting for those before them: the agent works them
 * off in order, and after a failed step the later ones fail too. Every method rejects with AgentError when the guest
 * reports a failure, AgentProtocolError when it sends what no agent may, AgentClosedError when it is gone.
 */
export class Agent {
  readonly #channel: ByteChannel;
  readonly #log: (text: string) => void;
  readonly #decoder = new FrameDecoder();
  readonly #sessions = new Map<number, Session>();
  readonly #hello = Promise.withResolvers<{ kernelRelease: string }>();
  /** Requests that wait for a session to end: the agent's table is small. */
  readonly #waiting: (() => void)[] = [];
  /** The end of the transmission before: a request's frames are sent together. */
  #transmission: Promise<unknown> = Promise.resolve();
  #lastSession = 0;
  #greeted = false;
  #logLines = 0;
  #closed: Error | null = null;

  private constructor(channel: ByteChannel, options: AgentOptions) {
    this.#channel = channel;
    this.#log = options.log ?? (() => undefined);
    this.#hello.promise.catch(() => undefined);
  }

  static open(channel: ByteChannel, options: AgentOptions = {}): Agent {
    const agent = new Agent(channel, options);
    channel.onData((chunk) => agent.#onBytes(chunk));
    return agent;
  }

  /** Waits for the greeting, which only a machine that booted from cold sends. @throws the reason of `signal` */
  async hello(signal: AbortSignal): Promise<{ kernelRelease: string }> {
    signal.throwIfAborted();
    const aborted = Promise.withResolvers<never>();
    const onAbort = () => aborted.reject(signal.reason);
    signal.addEventListener("abort", onAbort);
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
    return await Promise.race([this.#hello.promise, aborted.promise]);
  }

  /** Sets the guest's clock and reseeds its random numbers: clones share what their template knew. */
  async sync({ realtimeNs, entropy }: { realtimeNs: bigint; entropy: Uint8Array }): Promise<void> {
    if (entropy.byteLength !== protocol.SYNC_ENTROPY_BYTES) throw new Error("entropy of a wrong length");
    const nonce = crypto.getRandomValues(new BigUint64Array(1))[0] ?? 0n;
    const head = packIntegers([32, protocol.PROTOCOL_VERSION], [32, 0], [64, nonce], [64, realtimeNs]);
    const echo = await this.#request(AgentFrame.synced, HostFrame.sync, head, entropy);
    if (echo !== nonce) throw this.#fail(new AgentProtocolError("an answer to another SYNC"));
  }

  /**
   * Finds the disks by their serials and mounts them; with a scratch, as the root of the commands to come, or with a
   * "bare" one beside the layers, to be filled by `merge`.
   */
  async mount({ layers, scratch }: { layers: number; scratch: boolean | "bare" }): Promise<void> {
    const flags = scratch === "bare" ? protocol.MountFlag.bare : scratch ? protocol.MountFlag.scratch : 0;
    await this.#request(AgentFrame.done, HostFrame.mount, packIntegers([16, layers], [16, flags]));
  }

  /** @throws Error when `content` is not `sizeBytes` long: the machine must be ended then */
  async putFile(options: {
    path: GuestPath;
    mode: number;
    sizeBytes: number;
    content: AsyncIterable<Uint8Array>;
  }): Promise<void> {
    const session = new ReplySession(AgentFrame.done);
    await this.#start(session, async (id) => {
      const head = packIntegers([32, options.mode], [32, 0], [64, options.sizeBytes]);
      await this.#send(HostFrame.putOpen, id, head, byteStringToBytes(options.path));
      let leftBytes = options.sizeBytes;
      for await (const chunk of options.content) {
        leftBytes -= chunk.byteLength;
        if (leftBytes < 0) break;
        for (const part of split(chunk, protocol.FRAME_PAYLOAD_BYTES_MAX)) {
          // Whoever refused the file takes no more of it.
          if (session.ended) return;
          await this.#send(HostFrame.putData, id, part);
        }
      }
      if (leftBytes !== 0 && !session.ended) throw new Error("a file's content is not as long as it was said to be");
    });
    await session.answer;
  }

  /** Starts a command. `onOutput` must copy what it keeps. */
  exec(spec: AgentExecSpec, onOutput: (stream: OutputStream, chunk: Uint8Array) => void): ExecHandle {
    let sessionId = 0;
    const session = new ExecSession((stream, bytes) => this.#grant(sessionId, stream, bytes), onOutput);
    const sent = this.#sendExec(session, spec, (id) => {
      sessionId = id;
    });
    sent.catch((error: Error) => session.fail(error));
    return {
      started: session.started,
      exit: session.exit,
      signal: (number) => {
        if (!session.ended && sessionId !== 0) this.#post(HostFrame.signal, sessionId, packIntegers([32, number]));
      },
    };
  }

  /** Makes of all layers the one that can stand in for them, in the bare scratch. */
  async merge(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.merge);
  }

  /** Ends what the commands left, and makes the scratch unchanging. */
  async freeze(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.freeze);
  }

  /** Lets go of all disks, so that the machine can be given others; after a freeze, or where only layers are mounted. */
  async release(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.release);
  }

  /** Bytes of the listing of a disk. Who stops early must end the machine. */
  async *index(disk: number | "scratch"): AsyncGenerator<Uint8Array> {
    let sessionId = 0;
    const session = new IndexSession((stream, bytes) => this.#grant(sessionId, stream, bytes));
    await this.#start(session, async (id) => {
      sessionId = id;
      const number = disk === "scratch" ? protocol.INDEX_DISK_SCRATCH : disk;
      await this.#send(HostFrame.index, id, packIntegers([16, number]));
    });
    yield* session.chunks();
  }

  async #request(answerType: number, type: number, ...payload: readonly Uint8Array[]): Promise<bigint> {
    const session = new ReplySession(answerType);
    await this.#start(session, (id) => this.#send(type, id, ...payload));
    return await session.answer;
  }

  /** Opens a session in its turn and sends its frames; resolves when they are sent. */
  #start(session: Session, transmit: (id: number) => Promise<void>): Promise<void> {
    const turn = this.#transmission.then(async () => {
      while (this.#sessions.size >= protocol.SESSIONS_COUNT_MAX && this.#closed === null) {
        await new Promise<void>((resolve) => this.#waiting.push(resolve));
      }
      if (this.#closed !== null) throw this.#closed;
      this.#lastSession += 1;
      this.#sessions.set(this.#lastSession, session);
      await transmit(this.#lastSession);
    });
    this.#transmission = turn.catch(() => undefined);
    return turn;
  }

  /** Takes its turn before the first wait, so that requests keep the order of their calls. */
  async #sendExec(session: ExecSession, spec: AgentExecSpec, onId: (id: number) => void): Promise<void> {
    const bytes = encodeSpec(spec);
    if (bytes.byteLength > protocol.EXEC_SPEC_BYTES_MAX)
      throw new AgentError(ERRNO_TOO_BIG, "the command line is too long");
    const flags = spec.stdin === undefined ? 0 : protocol.ExecFlag.stdin;
    let sessionId = 0;
    await this.#start(session, async (id) => {
      sessionId = id;
      onId(id);
      const head = packIntegers([32, bytes.byteLength], [32, flags], [64, spec.timeoutMs]);
      await this.#send(HostFrame.execOpen, id, head);
      for (const part of split(bytes, protocol.FRAME_PAYLOAD_BYTES_MAX)) {
        if (!session.ended) await this.#send(HostFrame.execSpec, id, part);
      }
    });
    if (spec.stdin !== undefined) await this.#sendStdin(session, sessionId, spec.stdin);
  }

  async #sendStdin(session: ExecSession, id: number, stdin: NonNullable<AgentExecSpec["stdin"]>): Promise<void> {
    for await (const chunk of stdin) {
      for (let rest = chunk; rest.byteLength > 0; ) {
        const taken = await session.takeStdinCredit(Math.min(rest.byteLength, protocol.FRAME_PAYLOAD_BYTES_MAX));
        if (taken === 0) return;
        await this.#send(HostFrame.stdin, id, rest.subarray(0, taken));
        rest = rest.subarray(taken);
      }
    }
    if (!session.ended) await this.#send(HostFrame.stdin, id, NO_BYTES);
  }

  async #send(type: number, session: number, ...payload: readonly Uint8Array[]): Promise<void> {
    if (this.#closed !== null) throw this.#closed;
    try {
      await this.#channel.write(encodeFrame(type, session, ...payload));
    } catch (error) {
      throw this.#fail(new AgentClosedError("the agent's stream is closed", { cause: error }));
    }
  }

  /** Sends what nobody waits for; a failure shows in the session. */
  #post(type: number, session: number, payload: Uint8Array): void {
    this.#send(type, session, payload).catch(() => undefined);
  }

  #grant(session: number, stream: number, bytes: number): void {
    this.#post(HostFrame.window, session, packIntegers([32, stream], [32, bytes]));
  }

  #onBytes(chunk: Uint8Array | null): void {
    if (this.#closed !== null) return;
    if (chunk === null) {
      this.#fail(new AgentClosedError("the agent's stream closed"));
      return;
    }
    try {
      this.#decoder.push(chunk, (frame) => this.#onFrame(frame));
    } catch (error) {
      // Only what the guest sent is its fault; a failing reader of output must be seen as what it is.
      this.#fail(error instanceof Error ? error : new Error(String(error)));
      this.#channel.pause();
    }
  }

  #onFrame(frame: Frame): void {
    if (frame.session === 0) {
      this.#onGeneral(frame);
      return;
    }
    const session = this.#sessions.get(frame.session);
    if (session === undefined) throw new AgentProtocolError(`a frame of type ${frame.type} for no session`);
    if (!session.onFrame(frame)) return;
    this.#sessions.delete(frame.session);
    this.#waiting.shift()?.();
  }

  #onGeneral({ type, payload }: Frame): void {
    if (type === AgentFrame.log) {
      this.#logLines += 1;
      if (this.#logLines <= LOG_LINES_MAX) this.#log(guestText(payload));
      return;
    }
    if (type !== AgentFrame.hello || this.#greeted || payload.byteLength < 8) {
      throw new AgentProtocolError(`a frame of type ${type} out of place`);
    }
    this.#greeted = true;
    const version = viewOf(payload).getUint32(0, true);
    if (version !== protocol.PROTOCOL_VERSION) throw new AgentProtocolError(`protocol version ${version}`);
    this.#hello.resolve({ kernelRelease: guestText(payload.subarray(8)) });
  }

  #fail(error: Error): Error {
    if (this.#closed !== null) return this.#closed;
    this.#closed = error;
    this.#hello.reject(error);
    for (const session of this.#sessions.values()) session.fail(error);
    this.#sessions.clear();
    for (const resume of this.#waiting.splice(0)) resume();
    return error;
  }
}

/** u32 length and bytes each: hostname, cwd; u32 count and arguments; u32 count and environment. */
export function encodeSpec(spec: AgentExecSpec): Uint8Array {
  const environment = Object.entries(spec.env).map(([name, value]) => `${name}=${value}`);
  const count = (list: readonly unknown[]) => packIntegers([32, list.length]);
  const text = (value: string): Uint8Array[] => {
    const bytes = Buffer.from(value, "utf8");
    return [packIntegers([32, bytes.byteLength]), bytes];
  };
  return Buffer.concat([
    ...text(spec.hostname),
    ...text(spec.cwd),
    count(spec.argv),
    ...spec.argv.flatMap(text),
    count(environment),
    ...environment.flatMap(text),
  ]);
}

function* split(bytes: Uint8Array, sizeBytes: number): Generator<Uint8Array> {
  for (let offset = 0; offset < bytes.byteLength; offset += sizeBytes) yield bytes.subarray(offset, offset + sizeBytes);
}
