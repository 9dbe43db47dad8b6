import { SIGKILL_SIGNAL } from "../../domain/signals.ts";
import type { GuestPath } from "../../domain/tree/guest-path.ts";
import { byteStringToBytes } from "../../domain/tree/guest-path.ts";
import type { ByteChannel } from "../vmm.ts";
import { type AgentConnection, DialledConnection } from "./connection.ts";
import { AgentClosedError, AgentError, AgentProtocolError, AgentRefusedError } from "./errors.ts";
import { type AgentExecSpec, encodeExecOpen, encodeSpec } from "./exec-spec.ts";
import { GuestFiles } from "./files/guest-files.ts";
import { packIntegers, split } from "./frames.ts";
import type { GuestNetwork } from "./guest-network.ts";
import { AgentLink } from "./link.ts";
import type { Hello } from "./payload.ts";
import {
  type AttachedEnds,
  type ExecHandle,
  ExecSession,
  type OutputSink,
  type ProcessEnds,
  type ResumedEnds,
} from "./process.ts";
import type { AgentExit } from "./process-exit.ts";
import * as protocol from "./protocol.ts";
import { AgentFrame, HostFrame, Stream } from "./protocol.ts";
import { type AgentReport, type ReopenedStream, resumeStream, type SessionReport } from "./reconnect.ts";
import type { AgentRecord, ProcessRecord } from "./record.ts";
import { resumeConnections } from "./resumed-connections.ts";
import { IndexSession, type Quiesced, QuiesceSession, ReplySession } from "./sessions.ts";

export {
  AgentClosedError,
  type AgentConnection,
  AgentError,
  type AgentExecSpec,
  type AgentExit,
  AgentProtocolError,
  AgentRefusedError,
  type ExecHandle,
  type Quiesced,
};

const ERRNO_TOO_BIG = 7;

export interface ExecOptions extends Omit<ProcessEnds, "onOutput"> {
  /** a running command whose namespaces the new one joins */
  readonly target?: ExecHandle;
  /** the host's number of the command, which it has in a `SessionReport`; default: 0, none */
  readonly spid?: number;
  /** cancels the start while it waits for earlier requests */
  readonly signal?: AbortSignal;
}

export interface AgentOptions {
  /** receives log lines from the guest */
  readonly log?: (text: string) => void;
}

export interface ResumeOptions extends AgentOptions {
  /** returns the receivers of each running command */
  readonly process: (record: ProcessRecord) => ResumedEnds;
  /** answers the requests of the guest that have no answer yet; null: they are refused */
  readonly network: GuestNetwork | null;
}

export interface ReconnectOptions extends AgentOptions {
  /** answers the requests of the guest; null: they are refused */
  readonly network: GuestNetwork | null;
  /** ends the attempts */
  readonly signal: AbortSignal;
}

/** An agent that continues with another host. */
export interface ReconnectedAgent extends Pick<AgentReport, "disks" | "sessions"> {
  readonly agent: Agent;
}

/** The objects that continue from a record. */
export interface ResumedAgent {
  readonly agent: Agent;
  /** in the order of the record */
  readonly processes: readonly ExecHandle[];
  /** open connections, in the order of the record; the caller must reset those that it does not use */
  readonly connections: readonly AgentConnection[];
}

/**
 * Client of the agent in a guest. Requests need not wait for earlier ones: the agent handles them in order, and after a
 * failed step the later ones fail too. Every method rejects with AgentError when the guest reports a failure,
 * AgentProtocolError when the guest breaks the protocol, and AgentClosedError when the stream is closed.
 */
export class Agent {
  readonly #link: AgentLink;
  /** commands of an earlier host that are not attached yet */
  readonly #unattached: Map<number, SessionReport>;
  /** the ends of those that never were */
  #killed: Promise<unknown> = Promise.resolve();

  private constructor(link: AgentLink, sessions: readonly SessionReport[] = []) {
    this.#link = link;
    this.#unattached = new Map(sessions.map((report) => [report.session, report]));
  }

  static open(channel: ByteChannel, { log }: AgentOptions = {}): Agent {
    return new Agent(new AgentLink(channel, log));
  }

  /** Continues from the record of another Agent on the same stream, or on that of a copy of its machine. `sync` must follow. */
  static resume(channel: ByteChannel, record: AgentRecord, options: ResumeOptions): ResumedAgent {
    const link = new AgentLink(channel, options.log, { from: record });
    const processes = record.processes.map((from) => ExecSession.resume(link, from, options.process(from)));
    for (const process of processes) link.admit(process.session, process);
    if (options.network !== null) link.requests.serve(options.network);
    const connections = resumeConnections(link, record);
    return { agent: new Agent(link), processes, connections };
  }

  /**
   * Continues with an agent of which nothing but its own report is known: an earlier host is gone, or its stream. `attach` must
   * be called for every command that is to continue, and then `proceed`; until then nothing more is read.
   * @throws as `resumeStream` does. The caller must then end the machine.
   */
  static async reconnect(
    stream: ReopenedStream,
    { log, network, signal }: ReconnectOptions,
  ): Promise<ReconnectedAgent> {
    const resumed = await resumeStream(stream, signal);
    const { disks, sessions } = resumed.report;
    const link = new AgentLink(resumed.channel, log, { resumed });
    if (network !== null) link.requests.serve(network);
    return { agent: new Agent(link, sessions), disks, sessions };
  }

  /**
   * Continues with a command of the report. Output that is stored already is dropped, and `onStart` is called at once for one
   * that has started: it is to be omitted when that is known.
   * @throws OutputGapError when the agent has forgotten output that is not stored; AgentProtocolError when more is stored than
   *   the agent can have sent
   */
  attach(report: SessionReport, ends: AttachedEnds): ExecHandle {
    if (!this.#unattached.has(report.session))
      throw new Error("a command is attached once, before the stream proceeds");
    const session = ExecSession.attach(this.#link, report, ends);
    this.#unattached.delete(report.session);
    this.#link.admit(report.session, session);
    return session;
  }

  /** Continues to read the stream. Commands that were not attached are killed, and then forgotten. */
  proceed(): void {
    const ends = [...this.#unattached.values()].map((report) => {
      const handle = this.attach(report, { onOutput: () => undefined, logged: report.keptFrom });
      const kill = () => handle.signal(SIGKILL_SIGNAL, { group: true });
      // It rejects when the stream is lost.
      if (!report.finished) handle.started.then(kill).catch(() => undefined);
      return handle.exit;
    });
    this.#killed = Promise.allSettled(ends);
    this.#link.proceed();
  }

  /** The data from which other objects can continue with this guest. To be called during a hold. @throws Error without one */
  record(): AgentRecord {
    return this.#link.record();
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

  /** Sets the guest's clock and reseeds its random number generator, which a clone shares with its template. Ends a hold. */
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
   * Stops the stream between two frames, so that the machine can be copied. Commands continue; their output waits, and so do
   * new requests, until `sync` ends the hold. Waits until only running commands and open connections are left.
   * @param signal ends the wait. When `isHeld` is true then, `sync` must be called as well
   */
  async hold(signal?: AbortSignal): Promise<void> {
    const session = new ReplySession(AgentFrame.done, true);
    await this.#link.hold(session, session.answer, signal);
  }

  /** Fails everything with `reason`. The guest does not learn of it: during a hold, another Agent can continue. */
  abandon(reason: Error): void {
    this.#link.fail(reason);
  }

  /** True when a hold was requested of the guest and has not ended. */
  get isHeld(): boolean {
    return this.#link.isHeld;
  }

  /**
   * Leaves the agent to the next host, which gets all output that is not stored. Running commands continue, and their
   * handles never settle; everything else ends. Waits for requests under way.
   */
  async leave(): Promise<void> {
    const session = new ReplySession(AgentFrame.done, true);
    await this.#link.leave(session, session.answer);
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
   * Starts a command; with `target`, in the namespaces of that running command.
   * The handle rejects with AgentError EAGAIN when too many commands run, ESRCH when `target` has ended, and with the reason
   * of `signal`, which cancels the start while it waits for earlier requests.
   */
  exec(spec: AgentExecSpec, onOutput: OutputSink, options: ExecOptions = {}): ExecHandle {
    // The session lives as long as the command. It must not keep `spec`.
    const session = ExecSession.start(this.#link, spec, { onOutput, ...options });
    this.#sendExec(session, spec, options).then(
      () => session.opened(),
      (error: Error) => session.fail(error),
    );
    return session;
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

  /** The files that a running command has before it. */
  files(target: ExecHandle): GuestFiles {
    return new GuestFiles(this.#link, target);
  }

  /**
   * Gives the guest a network: its programs may open connections and resolve names, as far as `network` allows them to.
   * @param isOn false: they may no longer; `network` answers what was requested before
   */
  async network(network: GuestNetwork, isOn = true): Promise<void> {
    this.#link.requests.serve(network);
    const flags = isOn ? protocol.NetworkFlag.on : 0;
    await this.#request(AgentFrame.done, HostFrame.network, packIntegers([32, flags]));
  }

  /** Connections that the guest tried to open before it had a network, which an honest guest does not do. */
  get uninvitedCount(): number {
    return this.#link.requests.uninvitedCount;
  }

  /** Merges all layers into the bare scratch, as one layer that can replace them. */
  async merge(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.merge);
  }

  /** Ends all processes that commands left behind, and makes the scratch read-only, when all commands have ended. */
  async freeze(): Promise<void> {
    const session = new ReplySession(AgentFrame.done);
    await this.#link.open(session, async (id) => {
      // The agent counts a command until its end is stored.
      await this.#killed;
      await this.#link.forgotten();
      await this.#link.send(HostFrame.freeze, id);
    });
    await session.answer;
  }

  /** Resolves when the guest has received everything that was sent before, so that it is not lost with this process. */
  async receipt(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.receipt);
  }

  /** Writes the guest's cached data to the scratch while commands run, so that a following `quiesce` is short. */
  async flush(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.flush);
  }

  /** Stops all writes to the scratch while commands run, for at most `limitMs` (1 to QUIESCE_MS_MAX milliseconds). */
  async quiesce(limitMs: number): Promise<Quiesced> {
    const session = new QuiesceSession((id) => this.#link.post(HostFrame.thaw, id));
    await this.#link.open(session, async (id) => {
      session.id = id;
      await this.#link.send(HostFrame.quiesce, id, packIntegers([32, limitMs]));
    });
    await session.still;
    return session;
  }

  /** Unmounts and forgets all disks, so that others can be attached. Allowed after `freeze`, or with layers only. */
  async release(): Promise<void> {
    await this.#request(AgentFrame.done, HostFrame.release);
  }

  /** Streams the listing of a disk. A caller that stops early must end the machine. */
  async *index(disk: number | "scratch"): AsyncGenerator<Uint8Array> {
    let sessionId = 0;
    const session = new IndexSession((bytes) =>
      this.#link.post(HostFrame.window, sessionId, packIntegers([32, Stream.stdout], [32, bytes])),
    );
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
  async #sendExec(session: ExecSession, spec: AgentExecSpec, { target, spid = 0, signal }: ExecOptions): Promise<void> {
    const bytes = encodeSpec(spec);
    if (bytes.byteLength > protocol.EXEC_SPEC_BYTES_MAX)
      throw new AgentError(ERRNO_TOO_BIG, "the command line is too long");
    if (target !== undefined) await target.started;
    const targetId = target?.session ?? 0;
    await this.#link.open(
      session,
      async (id) => {
        session.session = id;
        await this.#link.send(HostFrame.execOpen, id, encodeExecOpen(spec, bytes.byteLength, targetId, spid));
        for (const part of split(bytes, protocol.FRAME_PAYLOAD_BYTES_MAX)) {
          if (!session.ended) await this.#link.send(HostFrame.execSpec, id, part);
        }
      },
      signal,
    );
  }
}
