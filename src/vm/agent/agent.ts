import type { GuestPath } from "../../domain/tree/guest-path.ts";
import { byteStringToBytes } from "../../domain/tree/guest-path.ts";
import type { ByteChannel } from "../vmm.ts";
import { type AgentConnection, DialledConnection } from "./connection.ts";
import { AgentClosedError, AgentError, AgentProtocolError, AgentRefusedError } from "./errors.ts";
import { packIntegers } from "./frames.ts";
import type { GuestNetwork } from "./guest-network.ts";
import { AgentLink, type Hello } from "./link.ts";
import {
  type AgentExecSpec,
  type AgentExit,
  ExecSession,
  encodeExecOpen,
  encodeSpec,
  type OutputSink,
  type StartListener,
  type TerminalSize,
} from "./process.ts";
import * as protocol from "./protocol.ts";
import { AgentFrame, HostFrame, Stream } from "./protocol.ts";
import { IndexSession, LatestValue, OutboundStream, QuiesceSession, ReceiveWindow, ReplySession } from "./sessions.ts";

export {
  AgentClosedError,
  type AgentConnection,
  AgentError,
  type AgentExecSpec,
  type AgentExit,
  AgentProtocolError,
  AgentRefusedError,
};

const ERRNO_TOO_BIG = 7;

/** A running command. Both promises reject when the agent reports an error or is lost. */
export interface ExecHandle {
  readonly started: Promise<void>;
  readonly exit: Promise<AgentExit>;
  /** Sends a signal to the command or to its process group. Does nothing after the command has ended. */
  signal(number: number, options?: { readonly group: boolean }): void;
  /**
   * Writes to standard input, in the order of the calls. Resolves to true when all bytes are sent, to false when the
   * command reads no more.
   */
  write(bytes: Uint8Array): Promise<boolean>;
  /** Ends standard input after everything written so far. */
  end(): Promise<void>;
  /**
   * Sets the size of the command's terminal. Does nothing after the command has ended or when it has no terminal. Like
   * `limit`, it does not wait for the guest: while that takes nothing, only the latest value is kept.
   */
  resize(size: TerminalSize): void;
  /**
   * Sets a new time limit in milliseconds, at least 1, counted from the command's start. Does nothing after the command has
   * ended.
   */
  limit(timeoutMs: number): void;
}

/** A scratch that nobody can write to. Disposal thaws it. */
export interface Quiesced extends AsyncDisposable {
  /**
   * Allows writes again; further calls return the same promise. Resolves to the time without writes, in nanoseconds.
   * @throws AgentError when writes went on before this call, so that a copy of the scratch is useless: ETIMEDOUT, the
   *   limit ended; ECANCELED, a process reached its time limit; EINVAL, the guest thawed the file system
   */
  thaw(): Promise<bigint>;
}

export interface ExecOptions {
  /** a running command whose namespaces the new one joins */
  readonly beside?: ExecHandle;
  readonly onStart?: StartListener;
  /** gives the start up while it waits for earlier requests */
  readonly signal?: AbortSignal;
}

export interface AgentOptions {
  /** receives log lines from the guest */
  readonly log?: (text: string) => void;
}

/**
 * Client of the agent in a guest. Requests need not wait for earlier ones: the agent handles them in order, and after a
 * failed step the later ones fail too. Every method rejects with AgentError when the guest reports a failure,
 * AgentProtocolError when the guest breaks the protocol, and AgentClosedError when the stream is closed.
 */
export class Agent {
  readonly #link: AgentLink;
  /** Session ids of the commands of this guest, for commands that join their namespaces. */
  readonly #ids = new WeakMap<ExecHandle, number>();

  private constructor(channel: ByteChannel, options: AgentOptions) {
    this.#link = new AgentLink(channel, options.log ?? (() => undefined));
  }

  static open(channel: ByteChannel, options: AgentOptions = {}): Agent {
    return new Agent(channel, options);
  }

  /** Waits for the greeting, which only a machine that booted from cold sends. @throws the reason of `signal` */
  async hello(signal: AbortSignal): Promise<Hello> {
    signal.throwIfAborted();
    const aborted = Promise.withResolvers<never>();
    const onAbort = () => aborted.reject(signal.reason);
    signal.addEventListener("abort", onAbort);
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
    return await Promise.race([this.#link.hello, aborted.promise]);
  }

  /**
   * Sets the guest's clock and reseeds its random number generator, which a clone otherwise shares with its template.
   * Ends a hold.
   */
  async sync({ realtimeNs, entropy }: { realtimeNs: bigint; entropy: Uint8Array }): Promise<void> {
    if (entropy.byteLength !== protocol.SYNC_ENTROPY_BYTES) throw new Error("entropy of a wrong length");
    const nonce = crypto.getRandomValues(new BigUint64Array(1))[0] ?? 0n;
    const head = packIntegers([32, protocol.PROTOCOL_VERSION], [32, 0], [64, nonce], [64, realtimeNs]);
    const session = new ReplySession(AgentFrame.synced);
    await this.#link.sync(session, [head, entropy]);
    const echo = await session.answer;
    if (echo !== nonce) throw this.#link.fail(new AgentProtocolError("an answer to another SYNC"));
  }

  /**
   * Stops the stream between two frames, so that the machine can be copied. Commands go on; their output waits, and so do
   * new requests, until `sync` ends the hold. A caller that stops waiting for the answer must call `sync` as well. Waits
   * until only running commands and open connections are left.
   */
  async hold(): Promise<void> {
    const session = new ReplySession(AgentFrame.done, true);
    await this.#link.hold(session, session.answer);
  }

  /**
   * Finds the disks by their serials and mounts them. With a scratch, their overlay becomes the root of later commands. A
   * "bare" scratch is mounted without an overlay, for `merge`.
   */
  async mount({ layers, scratch }: { layers: number; scratch: boolean | "bare" }): Promise<void> {
    const flags = scratch === "bare" ? protocol.MountFlag.bare : scratch ? protocol.MountFlag.scratch : 0;
    await this.#request(AgentFrame.done, HostFrame.mount, packIntegers([16, layers], [16, flags]));
  }

  /**
   * Writes a file, owned by root unless `owner` is given.
   * @throws Error when `content` does not have `sizeBytes`; the caller must then end the machine
   */
  async putFile(options: {
    path: GuestPath;
    mode: number;
    owner?: { readonly uid: number; readonly gid: number };
    sizeBytes: number;
    content: AsyncIterable<Uint8Array>;
  }): Promise<void> {
    const session = new ReplySession(AgentFrame.done);
    await this.#link.open(session, async (id) => {
      const { uid, gid } = options.owner ?? { uid: 0, gid: 0 };
      const head = packIntegers([32, options.mode], [32, uid], [32, gid], [32, 0], [64, options.sizeBytes]);
      await this.#link.send(HostFrame.putOpen, id, head, byteStringToBytes(options.path));
      let leftBytes = options.sizeBytes;
      for await (const chunk of options.content) {
        leftBytes -= chunk.byteLength;
        if (leftBytes < 0) break;
        for (const part of split(chunk, protocol.FRAME_PAYLOAD_BYTES_MAX)) {
          // A guest that refused the file ignores the rest.
          if (session.ended) return;
          await this.#link.send(HostFrame.putData, id, part);
        }
      }
      if (leftBytes !== 0 && !session.ended) throw new Error("the content of a file does not have its announced size");
    });
    await session.answer;
  }

  /**
   * Starts a command; with `beside`, in the namespaces of that running command.
   * The handle rejects with AgentError EAGAIN when too many commands run, ESRCH when `beside` has ended, and with the reason
   * of `signal`, which gives the start up as long as it waits for earlier requests.
   */
  exec(spec: AgentExecSpec, onOutput: OutputSink, options: ExecOptions = {}): ExecHandle {
    let id = 0;
    // The handle lives as long as the command. Its functions must not name `spec`, which they would keep.
    const hasTerminal = spec.terminal !== undefined;
    // Null when the command was not started or has ended.
    const idOfRunning = async (): Promise<number | null> => {
      await opened.catch(() => undefined);
      return session.ended ? null : id;
    };
    const stdin = new OutboundStream(Stream.stdin, protocol.FRAME_PAYLOAD_BYTES_MAX, async (bytes) => {
      const running = await idOfRunning();
      if (running !== null) await this.#link.send(HostFrame.stdin, running, bytes);
    });
    const end = () =>
      stdin.close(async () => {
        const running = await idOfRunning();
        if (running !== null) await this.#link.send(HostFrame.stdin, running);
      });
    const size = new LatestValue<TerminalSize>(async ({ rows, columns }) => {
      const running = await idOfRunning();
      if (running !== null) await this.#link.send(HostFrame.resize, running, packIntegers([16, rows], [16, columns]));
    });
    const limit = new LatestValue<number>(async (timeoutMs) => {
      const running = await idOfRunning();
      if (running !== null) await this.#link.send(HostFrame.limit, running, packIntegers([64, timeoutMs]));
    });
    const grant = (stream: number, bytes: number) => this.#grant(id, stream, bytes);
    const session = new ExecSession(grant, stdin, onOutput, options.onStart ?? (() => undefined));
    const handle: ExecHandle = {
      started: session.started,
      exit: session.exit,
      signal: (number, { group } = { group: false }) => {
        const flags = group ? protocol.SignalFlag.group : 0;
        if (!session.ended && id !== 0) this.#link.post(HostFrame.signal, id, packIntegers([32, number], [32, flags]));
      },
      write: async (bytes) => {
        await first;
        return await stdin.write(bytes);
      },
      end: async () => {
        await first;
        await end();
      },
      resize: (wanted) => {
        if (hasTerminal) size.set(wanted);
      },
      limit: (timeoutMs) => limit.set(timeoutMs),
    };
    // Later writes wait for the first input. They need no error from it: its failure ends the session.
    const first = sendFirstInput(spec.stdin, stdin, end).catch((error: Error) => session.fail(error));
    const onId = (given: number) => {
      id = given;
      this.#ids.set(handle, given);
    };
    const opened = this.#sendExec(session, spec, onId, options);
    opened.catch((error: Error) => session.fail(error));
    return handle;
  }

  /**
   * Connects to 127.0.0.1:`port` of the guest.
   * @throws AgentRefusedError when no program accepts; AgentError EAGAIN when the guest has too many connections
   */
  async dial(port: number): Promise<AgentConnection> {
    const session = new DialledConnection(this.#link);
    await this.#link.open(session, async (id) => {
      session.id = id;
      await this.#link.send(HostFrame.netDial, id, packIntegers([16, port], [16, 0]));
    });
    await session.opened;
    return session;
  }

  /**
   * Gives the guest a network: its programs may open connections and resolve names, as far as `network` allows them to.
   * @param options ipv6: names get IPv6 addresses as well
   */
  async network(network: GuestNetwork, { ipv6 }: { readonly ipv6: boolean }): Promise<void> {
    this.#link.requests.serve(network);
    const flags = protocol.NetworkFlag.on | (ipv6 ? protocol.NetworkFlag.ipv6 : 0);
    await this.#request(AgentFrame.done, HostFrame.network, packIntegers([32, flags]));
  }

  /** Connections that the guest tried to open before it was given a network, which an honest one does not. */
  get uninvitedCount(): number {
    return this.#link.requests.uninvitedCount;
  }

  /** Merges all layers into the bare scratch, as one layer that can replace them. */
  async merge(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.merge);
  }

  /** Ends all processes that commands left behind, and makes the scratch read-only. */
  async freeze(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.freeze);
  }

  /** Writes the guest's cached data to the scratch while commands run, so that a following `quiesce` is short. */
  async flush(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.flush);
  }

  /** Stops all writes to the scratch while commands run, for at most `limitMs` (1 to QUIESCE_MS_MAX milliseconds). */
  async quiesce(limitMs: number): Promise<Quiesced> {
    const session = new QuiesceSession();
    let id = 0;
    await this.#link.open(session, async (given) => {
      id = given;
      await this.#link.send(HostFrame.quiesce, id, packIntegers([32, limitMs]));
    });
    await session.still;
    let asked = false;
    const thaw = async () => {
      if (!asked && !session.over) this.#link.post(HostFrame.thaw, id);
      asked = true;
      return await session.ended;
    };
    const dispose = async () => {
      // Callers of `thaw` get the error.
      await thaw().catch(() => undefined);
    };
    return { thaw, [Symbol.asyncDispose]: dispose };
  }

  /** Unmounts and forgets all disks, so that others can be attached. Allowed after `freeze`, or with layers only. */
  async release(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.release);
  }

  /** Streams the listing of a disk. A caller that stops early must end the machine. */
  async *index(disk: number | "scratch"): AsyncGenerator<Uint8Array> {
    let sessionId = 0;
    const grant = (bytes: number) => this.#grant(sessionId, Stream.stdout, bytes);
    const session = new IndexSession(new ReceiveWindow(grant, protocol.WINDOW_BYTES_INITIAL));
    await this.#link.open(session, async (id) => {
      sessionId = id;
      const number = disk === "scratch" ? protocol.INDEX_DISK_SCRATCH : disk;
      await this.#link.send(HostFrame.index, id, packIntegers([16, number]));
    });
    yield* session.chunks();
  }

  async #request(answerType: number, type: number, ...payload: readonly Uint8Array[]): Promise<bigint> {
    const session = new ReplySession(answerType);
    await this.#link.open(session, (id) => this.#link.send(type, id, ...payload));
    return await session.answer;
  }

  /** Enters the queue before its first await, so that requests keep the order of their calls. */
  async #sendExec(
    session: ExecSession,
    spec: AgentExecSpec,
    onId: (id: number) => void,
    { beside: host, signal }: ExecOptions,
  ): Promise<void> {
    const bytes = encodeSpec(spec);
    if (bytes.byteLength > protocol.EXEC_SPEC_BYTES_MAX)
      throw new AgentError(ERRNO_TOO_BIG, "the command line is too long");
    if (host !== undefined) await host.started;
    const beside = host === undefined ? 0 : this.#ids.get(host);
    if (beside === undefined) throw new Error("the command to run beside was not started in this guest");
    await this.#link.open(
      session,
      async (id) => {
        onId(id);
        await this.#link.send(HostFrame.execOpen, id, encodeExecOpen(spec, bytes.byteLength, beside));
        for (const part of split(bytes, protocol.FRAME_PAYLOAD_BYTES_MAX)) {
          if (!session.ended) await this.#link.send(HostFrame.execSpec, id, part);
        }
      },
      signal,
    );
  }

  #grant(session: number, stream: number, bytes: number): void {
    this.#link.post(HostFrame.window, session, packIntegers([32, stream], [32, bytes]));
  }
}

/** Writes the beginning of standard input until the command reads no more, then ends the input unless it stays open. */
async function sendFirstInput(
  source: AgentExecSpec["stdin"],
  to: OutboundStream,
  end: () => Promise<void>,
): Promise<void> {
  if (source === undefined || source === "open") return;
  for await (const chunk of "first" in source ? source.first : source) if (!(await to.write(chunk))) return;
  if (!("first" in source)) await end();
}

function* split(bytes: Uint8Array, sizeBytes: number): Generator<Uint8Array> {
  for (let offset = 0; offset < bytes.byteLength; offset += sizeBytes) yield bytes.subarray(offset, offset + sizeBytes);
}
