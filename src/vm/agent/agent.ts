import type { GuestPath } from "../../domain/guest-path.ts";
import { byteStringToBytes } from "../../domain/guest-path.ts";
import type { ByteChannel } from "../vmm.ts";
import { ConnectionSession } from "./connection.ts";
import { AgentClosedError, AgentError, AgentProtocolError, AgentRefusedError } from "./errors.ts";
import { packIntegers } from "./frames.ts";
import { AgentLink, type Hello } from "./link.ts";
import {
  type AgentExecSpec,
  type AgentExit,
  ExecSession,
  encodeExecOpen,
  encodeSpec,
  type OutputStream,
  type TerminalSize,
} from "./process.ts";
import * as protocol from "./protocol.ts";
import { AgentFrame, HostFrame, Stream } from "./protocol.ts";
import { IndexSession, OutboundStream, QuiesceSession, ReceiveWindow, ReplySession } from "./sessions.ts";

export { AgentClosedError, AgentError, type AgentExecSpec, type AgentExit, AgentProtocolError, AgentRefusedError };

const ERRNO_TOO_BIG = 7;

/** A running command. Both promises reject when the agent fails or is lost. */
export interface ExecHandle {
  readonly started: Promise<void>;
  readonly exit: Promise<AgentExit>;
  /** Sends a signal to the command, or to its process group; without effect once it ended. */
  signal(number: number, options?: { readonly group: boolean }): void;
  /** Standard input, in the order of the calls; resolves when all is sent: true, or false when nobody takes it any more. */
  write(bytes: Uint8Array): Promise<boolean>;
  /** The end of standard input, behind everything that was written. */
  end(): Promise<void>;
  /** The new size of the command's terminal; without effect once it ended, or where there is none. */
  resize(size: TerminalSize): Promise<void>;
}

/** A connection to a port of the guest. Its two directions end by themselves, as those of a socket do. */
export interface AgentConnection extends AsyncDisposable {
  /** Bytes of the guest up to its end, for one reader. @throws AgentClosedError after a reset */
  chunks(): AsyncGenerator<Uint8Array>;
  /** In the order of the calls; resolves when all is sent: true, or false when nobody takes it any more. */
  write(bytes: Uint8Array): Promise<boolean>;
  /** The host's end, behind everything that was written. */
  end(): Promise<void>;
  /** Ends both directions at once; without effect when the connection is over. Disposal does the same. */
  reset(): void;
}

/** A scratch that stands still. Disposal thaws it. */
export interface Quiesced extends AsyncDisposable {
  /**
   * Lets writes go on; the same for every call. Resolves to the ns that nothing changed.
   * @throws AgentError when writes went on before, so that a copy is worth nothing: ETIMEDOUT, the limit was over;
   *   ECANCELED, a process reached its time limit; EINVAL, the guest thawed it
   */
  thaw(): Promise<bigint>;
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
  readonly #link: AgentLink;
  /** Sessions of the commands that were started here, for those that are to run beside them. */
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

  /** Sets the guest's clock and reseeds its random numbers: clones share what their template knew. Ends a hold. */
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
   * Makes the stream stand still between two frames, so that the machine can be copied with it: commands run on, their
   * output waits. What is asked for meanwhile waits for the `sync` that ends the hold; who stops waiting for the answer
   * must send that, too. Waits for the end of everything but running commands and open connections.
   */
  async hold(): Promise<void> {
    const session = new ReplySession(AgentFrame.done, true);
    await this.#link.hold(session, session.answer);
  }

  /**
   * Finds the disks by their serials and mounts them; with a scratch, as the root of the commands to come, or with a
   * "bare" one beside the layers, to be filled by `merge`.
   */
  async mount({ layers, scratch }: { layers: number; scratch: boolean | "bare" }): Promise<void> {
    const flags = scratch === "bare" ? protocol.MountFlag.bare : scratch ? protocol.MountFlag.scratch : 0;
    await this.#request(AgentFrame.done, HostFrame.mount, packIntegers([16, layers], [16, flags]));
  }

  /** Owned by root where no other is named. @throws Error when `content` is not `sizeBytes` long: the machine must be ended then */
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
          // Whoever refused the file takes no more of it.
          if (session.ended) return;
          await this.#link.send(HostFrame.putData, id, part);
        }
      }
      if (leftBytes !== 0 && !session.ended) throw new Error("a file's content is not as long as it was said to be");
    });
    await session.answer;
  }

  /**
   * Starts a command; `beside`: in the namespaces of a command that runs. `onOutput` must copy what it keeps. Rejects
   * with AgentError EAGAIN when too many run, ESRCH when there is no such command any more.
   */
  exec(
    spec: AgentExecSpec,
    onOutput: (stream: OutputStream, chunk: Uint8Array) => void,
    options: { readonly beside?: ExecHandle } = {},
  ): ExecHandle {
    let id = 0;
    // Null: the command was not started, or has ended.
    const idOfRunning = async (): Promise<number | null> => {
      await opened.catch(() => undefined);
      return session.ended ? null : id;
    };
    const stdin = new OutboundStream(Stream.stdin, protocol.FRAME_PAYLOAD_BYTES_MAX, async (bytes) => {
      const running = await idOfRunning();
      if (running !== null) await this.#link.send(HostFrame.stdin, running, bytes);
    });
    const session = new ExecSession((stream, bytes) => this.#grant(id, stream, bytes), stdin, onOutput);
    const handle: ExecHandle = {
      started: session.started,
      exit: session.exit,
      signal: (number, { group } = { group: false }) => {
        const flags = group ? protocol.SignalFlag.group : 0;
        if (!session.ended && id !== 0) this.#link.post(HostFrame.signal, id, packIntegers([32, number], [32, flags]));
      },
      write: (bytes) => stdin.write(bytes),
      end: () =>
        stdin.close(async () => {
          const running = await idOfRunning();
          if (running !== null) await this.#link.send(HostFrame.stdin, running);
        }),
      resize: async ({ rows, columns }) => {
        const running = spec.terminal === undefined ? null : await idOfRunning();
        if (running !== null) await this.#link.send(HostFrame.resize, running, packIntegers([16, rows], [16, columns]));
      },
    };
    const opened = this.#sendExec(session, spec, options.beside, (given) => {
      id = given;
      this.#ids.set(handle, given);
    });
    opened.catch((error: Error) => session.fail(error));
    if (spec.stdin !== undefined && spec.stdin !== "open") {
      feed(handle, spec.stdin).catch((error: Error) => session.fail(error));
    }
    return handle;
  }

  /**
   * Connects to 127.0.0.1:`port` of the guest.
   * @throws AgentRefusedError when nobody takes the connection; AgentError EAGAIN when there are too many
   */
  async dial(port: number): Promise<AgentConnection> {
    let id = 0;
    const window = new ReceiveWindow(
      (bytes) => this.#grant(id, Stream.data, bytes),
      protocol.INPUT_WINDOW_BYTES_INITIAL,
      protocol.INPUT_WINDOW_BYTES_MAX,
    );
    const outbound = new OutboundStream(Stream.data, protocol.FRAME_PAYLOAD_BYTES_MAX, (bytes) =>
      this.#link.send(HostFrame.netData, id, bytes),
    );
    const session = new ConnectionSession(window, outbound);
    await this.#link.open(session, async (given) => {
      id = given;
      await this.#link.send(HostFrame.netDial, id, packIntegers([16, port], [16, 0]));
    });
    await session.opened;
    const reset = () => {
      if (session.over) return;
      session.sendReset();
      this.#link.post(HostFrame.netReset, id);
    };
    return {
      chunks: () => session.chunks(),
      write: (bytes) => outbound.write(bytes),
      end: () =>
        outbound.close(async () => {
          session.sendEnd();
          await this.#link.send(HostFrame.netEnd, id);
        }),
      reset,
      [Symbol.asyncDispose]: async () => reset(),
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

  /** Writes out what the guest holds of the scratch in memory, while commands run: a `quiesce` behind it is quick. */
  async flush(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.flush);
  }

  /** Stops all writes to the scratch, while commands run; for `limitMs` (1 to QUIESCE_MS_MAX) at most. */
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
      // How it ended is told to who asks for it.
      await thaw().catch(() => undefined);
    };
    return { thaw, [Symbol.asyncDispose]: dispose };
  }

  /** Lets go of all disks, so that the machine can be given others; after a freeze, or where only layers are mounted. */
  async release(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.release);
  }

  /** Bytes of the listing of a disk. Who stops early must end the machine. */
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

  /** Takes its turn before the first wait, so that requests keep the order of their calls. */
  async #sendExec(
    session: ExecSession,
    spec: AgentExecSpec,
    host: ExecHandle | undefined,
    onId: (id: number) => void,
  ): Promise<void> {
    const bytes = encodeSpec(spec);
    if (bytes.byteLength > protocol.EXEC_SPEC_BYTES_MAX)
      throw new AgentError(ERRNO_TOO_BIG, "the command line is too long");
    if (host !== undefined) await host.started;
    const beside = host === undefined ? 0 : this.#ids.get(host);
    if (beside === undefined) throw new Error("the command to run beside is none of this guest");
    await this.#link.open(session, async (id) => {
      onId(id);
      await this.#link.send(HostFrame.execOpen, id, encodeExecOpen(spec, bytes.byteLength, beside));
      for (const part of split(bytes, protocol.FRAME_PAYLOAD_BYTES_MAX)) {
        if (!session.ended) await this.#link.send(HostFrame.execSpec, id, part);
      }
    });
  }

  #grant(session: number, stream: number, bytes: number): void {
    this.#link.post(HostFrame.window, session, packIntegers([32, stream], [32, bytes]));
  }
}

/** Writes what a command takes of `chunks`, and the end behind it. */
async function feed(
  { write, end }: ExecHandle,
  chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): Promise<void> {
  for await (const chunk of chunks) if (!(await write(chunk))) return;
  await end();
}

function* split(bytes: Uint8Array, sizeBytes: number): Generator<Uint8Array> {
  for (let offset = 0; offset < bytes.byteLength; offset += sizeBytes) yield bytes.subarray(offset, offset + sizeBytes);
}
