import type { AgentExecSpec, InputBytes, TerminalSize } from "./exec-spec.ts";
import { type Frame, packIntegers, viewOf } from "./frames.ts";
import { checkLength, parseError, unexpected } from "./payload.ts";
import { type AgentExit, parseExit } from "./process-exit.ts";
import {
  AgentFrame,
  FRAME_PAYLOAD_BYTES_MAX,
  HostFrame,
  KEEP_BYTES_MIN,
  SignalFlag,
  Stream,
  WINDOW_BYTES_INITIAL,
} from "./protocol.ts";
import { attachedRecord, type OutputBytes, type SessionReport } from "./reconnect.ts";
import type { FirstInput, ProcessRecord } from "./record.ts";
import type { FrameParts, Session } from "./sessions.ts";
import { LatestValue, OutboundStream, OutputCredit, ReceiveWindow, type SlowReaders } from "./streams.ts";

export type OutputStream = "stdout" | "stderr";

const OUTPUTS: readonly number[] = [Stream.stdout, Stream.stderr];
const NO_READERS: SlowReaders = { drained: undefined };

/**
 * Receives the output of a command. A chunk is valid only during the call: a sink must copy the bytes that it keeps.
 * @returns a promise that resolves when the chunk is stored, where a later process of the host can find it; undefined: it is.
 *   Chunks that are stored together should have the same one. The command gets credit for stored output, and the agent keeps
 *   the other: at most WINDOW_BYTES_INITIAL of each stream can wait. The promise must not reject.
 */
export type OutputSink = (stream: OutputStream, chunk: Uint8Array) => Promise<void> | undefined;

/** Called with the pid of a command, before its first output is passed on. */
export type StartListener = (pid: number) => void;

/** A running command. Both promises reject when the agent reports an error or is lost. */
export interface ExecHandle {
  /** id of the command's session; 0 until it is sent */
  readonly session: number;
  readonly started: Promise<void>;
  readonly exit: Promise<AgentExit>;
  /** position in standard input of the next byte to be sent */
  readonly inputPosition: number;
  /**
   * Sends a signal to the command or to its process group. Does nothing after the command has ended.
   * @throws AgentError EAGAIN when too many signals wait for the guest to take them
   */
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
   * `limit`, it does not wait for the guest: while the guest does not read, only the latest value is kept.
   */
  resize(size: TerminalSize): void;
  /**
   * Sets a new time limit in milliseconds, at least 1, counted from the command's start. Does nothing after the command has
   * ended.
   */
  limit(timeoutMs: number): void;
}

/** The part of the link to a guest that a command uses. */
export interface ProcessLink {
  post(type: number, session: number, ...payload: readonly Uint8Array[]): void;
  /** As `post`, for a frame that a caller asked for. @throws AgentError EAGAIN when too many frames wait for the guest */
  postAsked(type: number, session: number, ...payload: readonly Uint8Array[]): void;
  /** Sends the frame of `make`, or none when that is null. `make` is called when the frame can be sent. */
  sendMade(make: () => FrameParts | null): Promise<void>;
  /** Forgets a session of which the host sent the last frame. */
  forget(session: number): void;
}

/** The receivers of a running command's output and start on the host. */
export interface ProcessEnds {
  readonly onOutput: OutputSink;
  readonly onStart?: StartListener | undefined;
  /** readers of the output that the command waits for, beyond what is stored */
  readonly readers?: SlowReaders | undefined;
  /**
   * Receives the end, after all output. The agent keeps it until the promise that it returns has resolved: the end is
   * stored; undefined: it is. The promise must not reject. Not called for a command whose handle has failed.
   */
  readonly onExit?: ((exit: AgentExit) => Promise<void> | undefined) | undefined;
}

/** The same of a command that another object started. */
export interface ResumedEnds extends ProcessEnds {
  /** resolves when the output that the earlier object received is stored; absent: it is */
  readonly stored?: Promise<void> | undefined;
  /**
   * the rest of the first input, from `stdin.sentBytes` on. Without it, a command whose record does not say "sent" must be
   * ended, because it would miss a part of its input
   */
  readonly first?: InputBytes | undefined;
}

/** The same of a command that an earlier host started. */
export interface AttachedEnds extends ProcessEnds {
  /** sizes of the outputs that are stored, or were dropped, in `bytes`: the agent may send their ends again */
  readonly logged: OutputBytes;
  /** the rest of the first input, from `SessionReport.stdinTakenBytes` on; absent: the command has received all of it */
  readonly first?: InputBytes | undefined;
  /** true: later writes follow the first input; false: it ends then */
  readonly keepsInput?: boolean | undefined;
}

/** The session of a running command. */
export class ExecSession implements Session, ExecHandle {
  readonly class = "process";
  session: number;
  ended = false;
  readonly #link: ProcessLink;
  readonly #hasTerminal: boolean;
  readonly #onOutput: OutputSink;
  readonly #onStart: StartListener;
  readonly #onExit: NonNullable<ProcessEnds["onExit"]>;
  readonly #started = Promise.withResolvers<void>();
  readonly #exit = Promise.withResolvers<AgentExit>();
  /** resolves when the whole request is sent: to false when it failed */
  readonly #opened = Promise.withResolvers<boolean>();
  #isOpen = false;
  readonly #credit: OutputCredit;
  readonly #stdin: OutboundStream;
  readonly #size: LatestValue<TerminalSize>;
  readonly #limit: LatestValue<{ readonly timeoutMs: number }>;
  #firstInput: FirstInput;
  /** later writes wait for the first input, whose failure ends the session */
  readonly #first: Promise<void>;
  #pid: number | null;
  awaitsForget = false;

  private constructor(
    link: ProcessLink,
    { onOutput, onStart = () => undefined, onExit = () => undefined, readers = NO_READERS }: ProcessEnds,
    options: Pick<ProcessRecord, "hasTerminal" | "firstInput"> & {
      readonly from?: ProcessRecord;
      first?: InputBytes | undefined;
    },
  ) {
    const { from } = options;
    this.#link = link;
    this.#hasTerminal = options.hasTerminal;
    this.#onOutput = onOutput;
    this.#onStart = onStart;
    this.#onExit = onExit;
    this.session = from?.session ?? 0;
    this.#pid = from?.pid ?? null;
    const window = (stream: number, record: ProcessRecord["stdout"] | undefined) =>
      [
        stream,
        new ReceiveWindow((bytes) => this.#grant(stream, bytes), {
          sizeBytes: WINDOW_BYTES_INITIAL,
          stepBytes: KEEP_BYTES_MIN / 2,
          from: record,
        }),
      ] as const;
    const windows = new Map([window(Stream.stdout, from?.stdout), window(Stream.stderr, from?.stderr)]);
    this.#credit = new OutputCredit(windows, readers);
    this.#stdin = new OutboundStream((take) => this.#sendRunning(() => inputFrame(this.session, take())), {
      stream: Stream.stdin,
      pieceBytesMax: FRAME_PAYLOAD_BYTES_MAX,
      from: from?.stdin,
    });
    this.#size = new LatestValue((take) => this.#sendRunning(() => sizeFrame(this.session, take())), from?.unsentSize);
    this.#limit = new LatestValue(
      (take) => this.#sendRunning(() => limitFrame(this.session, take())),
      from?.unsentLimit,
    );
    this.#firstInput = options.firstInput;
    this.#first = this.#sendFirst(options.first).catch((error: Error) => this.fail(error));
    // A caller may wait for only one of them.
    this.#started.promise.catch(() => undefined);
    this.#exit.promise.catch(() => undefined);
  }

  /** A command to be started; `opened` must be called when its request is sent. */
  static start(link: ProcessLink, { stdin, terminal }: AgentExecSpec, ends: ProcessEnds): ExecSession {
    const hasTerminal = terminal !== undefined;
    if (stdin === undefined || stdin === "open")
      return new ExecSession(link, ends, { hasTerminal, firstInput: "sent" });
    return "first" in stdin
      ? new ExecSession(link, ends, { hasTerminal, firstInput: "stays_open", first: stdin.first })
      : new ExecSession(link, ends, { hasTerminal, firstInput: "ends", first: stdin });
  }

  /** A command that another object started. */
  static resume(link: ProcessLink, from: ProcessRecord, ends: ResumedEnds): ExecSession {
    const { hasTerminal, firstInput } = from;
    const session = new ExecSession(link, ends, { hasTerminal, firstInput, first: ends.first, from });
    session.opened();
    if (from.pid !== null) session.#started.resolve();
    for (const stream of OUTPUTS) {
      session.#credit.take(stream, session.#credit.window(stream).waitingBytes, ends.stored);
    }
    return session;
  }

  /** A command of an earlier host. Calls `onStart` when it has started. @throws as `attachedRecord` does */
  static attach(link: ProcessLink, report: SessionReport, ends: AttachedEnds): ExecSession {
    const { logged, first, keepsInput } = ends;
    const firstInput = first === undefined ? "sent" : keepsInput === true ? "stays_open" : "ends";
    const { record, skipped } = attachedRecord(report, { logged, firstInput });
    if (report.pid !== null) ends.onStart?.(report.pid);
    return ExecSession.resume(link, record, { ...ends, onOutput: behind(skipped, ends.onOutput) });
  }

  /** The command as plain data; null when it has ended. */
  record(): ProcessRecord | null {
    if (this.awaitsForget) return null;
    return {
      class: "process",
      session: this.session,
      pid: this.#pid,
      hasTerminal: this.#hasTerminal,
      stdout: this.#credit.window(Stream.stdout).record(),
      stderr: this.#credit.window(Stream.stderr).record(),
      stdin: this.#stdin.record(),
      firstInput: this.#firstInput,
      unsentSize: this.#size.waiting,
      unsentLimit: this.#limit.waiting,
    };
  }

  get started(): Promise<void> {
    return this.#started.promise;
  }

  get exit(): Promise<AgentExit> {
    return this.#exit.promise;
  }

  get inputPosition(): number {
    return this.#stdin.sentBytes;
  }

  /** To be called when the whole request is sent. */
  opened(): void {
    this.#isOpen = true;
    this.#opened.resolve(true);
  }

  signal(number: number, { group } = { group: false }): void {
    const flags = group ? SignalFlag.group : 0;
    if (this.ended || this.session === 0) return;
    this.#link.postAsked(HostFrame.signal, this.session, packIntegers([32, number], [32, flags]));
  }

  async write(bytes: Uint8Array): Promise<boolean> {
    await this.#first;
    return await this.#stdin.write(bytes);
  }

  async end(): Promise<void> {
    await this.#first;
    await this.#endInput();
  }

  resize(size: TerminalSize): void {
    if (this.#hasTerminal) this.#size.set(size);
  }

  limit(timeoutMs: number): void {
    this.#limit.set({ timeoutMs });
  }

  onFrame(frame: Frame): boolean {
    if (this.awaitsForget) throw unexpected(frame);
    switch (frame.type) {
      case AgentFrame.started: {
        const pid = checkLength(frame, 4).getUint32(0, true);
        if (this.#pid !== null) throw unexpected(frame);
        this.#pid = pid;
        // An honest agent has read the whole request.
        this.opened();
        this.#onStart(pid);
        this.#started.resolve();
        return false;
      }
      case AgentFrame.output:
        this.#output(frame);
        return false;
      case AgentFrame.window:
        this.#stdin.credit(frame);
        return false;
      case AgentFrame.exit:
        this.#exited(parseExit(frame));
        return false;
      case AgentFrame.error:
        this.fail(parseError(frame));
        return true;
      default:
        throw unexpected(frame);
    }
  }

  fail(error: Error): void {
    this.#opened.resolve(false);
    this.#started.reject(error);
    this.#exit.reject(error);
    this.#end();
  }

  #exited(exit: AgentExit): void {
    const stored = this.ended ? undefined : this.#onExit(exit);
    this.#exit.resolve(exit);
    this.#started.resolve();
    this.#end();
    this.awaitsForget = true;
    if (stored === undefined) this.#forget();
    else void stored.then(() => this.#forget());
  }

  #forget(): void {
    this.#link.post(HostFrame.forget, this.session);
    this.#link.forget(this.session);
  }

  #grant(stream: number, bytes: number): void {
    this.#link.post(HostFrame.window, this.session, packIntegers([32, stream], [32, bytes]));
  }

  /** Sends a frame of a command whose request is sent and which has not ended. */
  async #sendRunning(make: () => FrameParts | null): Promise<void> {
    if (this.#isOpen || (await this.#opened.promise)) await this.#link.sendMade(() => (this.ended ? null : make()));
  }

  /** Writes the beginning of standard input until the command reads no more, then ends the input unless it stays open. */
  async #sendFirst(source: InputBytes | undefined): Promise<void> {
    if (source === undefined) return;
    for await (const chunk of source) if (!(await this.#stdin.write(chunk))) return;
    if (this.#firstInput === "ends") await this.#endInput();
    this.#firstInput = "sent";
  }

  async #endInput(): Promise<void> {
    await this.#stdin.close(() => this.#sendRunning(() => [HostFrame.stdin, this.session]));
  }

  #output(frame: Frame): void {
    // An output without bytes would need no credit, so nothing would bound their number.
    if (frame.payload.byteLength <= 4) throw unexpected(frame);
    const stream = viewOf(frame.payload).getUint32(0, true);
    if (!OUTPUTS.includes(stream)) throw unexpected(frame);
    const bytes = frame.payload.subarray(4);
    this.#credit.window(stream).receive(bytes.byteLength);
    const stored = this.#onOutput(stream === Stream.stdout ? "stdout" : "stderr", bytes);
    this.#credit.take(stream, bytes.byteLength, stored);
  }

  #end(): void {
    this.ended = true;
    this.#credit.stop();
    this.#stdin.stop();
  }
}

/** A sink behind a beginning of each output that is stored already. */
export function behind(skipped: OutputBytes, sink: OutputSink): OutputSink {
  const left = { ...skipped };
  return (stream, chunk) => {
    const stored = Math.min(left[stream], chunk.byteLength);
    left[stream] -= stored;
    return stored === chunk.byteLength ? undefined : sink(stream, chunk.subarray(stored));
  };
}

/** The frame of a piece of standard input; null when it is empty, because an empty frame would end the input. */
function inputFrame(session: number, bytes: Uint8Array): FrameParts | null {
  return bytes.byteLength === 0 ? null : [HostFrame.stdin, session, bytes];
}

function sizeFrame(session: number, size: TerminalSize | null): FrameParts | null {
  return size === null ? null : [HostFrame.resize, session, packIntegers([16, size.rows], [16, size.columns])];
}

function limitFrame(session: number, limit: { readonly timeoutMs: number } | null): FrameParts | null {
  return limit === null ? null : [HostFrame.limit, session, packIntegers([64, limit.timeoutMs])];
}
