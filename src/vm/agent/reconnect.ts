import type { OutputStream } from "../../domain/output.ts";
import { untilAborted, withinTime } from "../../system/waiting.ts";
import type { ByteChannel } from "../vmm.ts";
import { AgentClosedError, AgentProtocolError, AgentVersionError, OutputGapError } from "./errors.ts";
import { encodeFrame, type Frame, FrameDecoder, packIntegers, viewOf } from "./frames.ts";
import { type Hello, parseError, parseHello, unexpected } from "./payload.ts";
import {
  AgentFrame,
  DisksState,
  HostFrame,
  INPUT_WINDOW_BYTES_MAX,
  PROCESSES_COUNT_MAX,
  PROTOCOL_VERSION,
  SESSION_BYTES,
  SESSION_GUEST_BIT,
  SessionFlag,
  WINDOW_BYTES_INITIAL,
} from "./protocol.ts";
import type { FirstInput, ProcessRecord } from "./record.ts";

/**
 * Longest waits of the attempts for the greeting, in `milliseconds`. An agent is silent when it has not noticed the end of the
 * connection before; on a busy host it is just late.
 */
const WAITS_MS = [500, 1000, 2000];
/** Time without a connection before the next attempt, so that the agent can notice the end of the one before; doubled for each. */
const PAUSE_MS = 50;
/** Limit of lines for the log before the answer. An honest agent has had no connection to send many. */
const LINES_COUNT_MAX = 200;
/** Fields of RESUMED before the sessions, in `bytes`. */
const HEAD_BYTES = 16;
const FLAGS_ALL = Object.values(SessionFlag).reduce((all, flag) => all | flag, 0);
const DISKS_STATES: ReadonlySet<number> = new Set(Object.values(DisksState));
const NOTHING = new Uint8Array();

/** `bytes` of each output of a command. */
export type OutputBytes = Readonly<Record<OutputStream, number>>;

/** A command that runs, or whose end was not forgotten, as the agent describes it to its next host. */
export interface SessionReport {
  readonly session: number;
  /** the number that the earlier host gave it; 0: none. No two have the same. */
  readonly spid: number;
  /** session of the command whose namespaces it has joined; 0: none. That session may be over. */
  readonly target: number;
  readonly started: boolean;
  /** true: nothing is left of it, and its EXIT follows its output */
  readonly finished: boolean;
  /** null before the start */
  readonly pid: number | null;
  readonly hasTerminal: boolean;
  /** true for a command without a program */
  readonly isIdle: boolean;
  readonly lingers: boolean;
  /** true when it was started with bytes for standard input to follow */
  readonly hasInput: boolean;
  /** true when the earlier host has ended the input */
  readonly inputEnded: boolean;
  /** bytes of standard input that the agent has received: position of the next one */
  readonly stdinTakenBytes: number;
  readonly stdinCreditBytes: number;
  /** positions in the outputs, of the first bytes that the agent has kept and sends again */
  readonly keptFrom: OutputBytes;
  /** size of what it has kept of both outputs, in `bytes` */
  readonly keptBytes: number;
  /** since the start, in `milliseconds` */
  readonly ranMs: number;
  /** time limit from the start, in `milliseconds`; 0: none */
  readonly limitMs: number;
}

/** The state that an agent has kept from an earlier host. */
export interface AgentReport extends Hello {
  /** a value of `DisksState` in protocol.ts */
  readonly disks: number;
  readonly sessions: readonly SessionReport[];
}

/** The stream to an agent that can be opened again. */
export interface ReopenedStream {
  readonly channel: ByteChannel;
  /** Closes the stream, and opens it again after `pauseMs`, in which the agent can notice that. */
  reconnect(pauseMs: number): Promise<ByteChannel>;
}

/** A stream whose next frame is the first one after RESUMED. It is paused. */
export interface ResumedStream {
  readonly channel: ByteChannel;
  readonly report: AgentReport;
  /** bytes that were read already */
  readonly rest: Uint8Array;
}

/**
 * Makes the agent continue with this host.
 * @throws AgentVersionError when it speaks another protocol; AgentProtocolError when its report is invalid; AgentClosedError
 *   when it does not greet; the error of `reconnect`; the reason of `signal`
 */
export async function resumeStream(stream: ReopenedStream, signal: AbortSignal): Promise<ResumedStream> {
  let { channel } = stream;
  for (let attempt = 0; ; attempt++) {
    const frames = new FrameReader(channel);
    const answer = await untilAborted(greet(frames, WAITS_MS[attempt] ?? 0), signal).catch(staleness);
    if (!(answer instanceof Error)) return { channel, report: parseReport(answer), rest: frames.rest };
    channel.pause();
    if (attempt === WAITS_MS.length - 1) throw new AgentClosedError("the agent does not greet", { cause: answer });
    channel = await untilAborted(stream.reconnect(PAUSE_MS * 2 ** attempt), signal);
  }
}

/** The error, if a stream that is opened again may have none: the agent may stand in the middle of the stream before. */
function staleness(error: unknown): Error {
  if (error instanceof AgentProtocolError || error instanceof AgentClosedError) return error;
  throw error;
}

interface Answer {
  readonly kernelRelease: string;
  readonly resumed: Frame;
}

/**
 * Waits for the greeting, and requests the report. What comes before the agent has repeated the nonce may be output of a
 * command that only looks like frames.
 */
async function greet(frames: FrameReader, waitMs: number): Promise<Answer> {
  const late = (): never => {
    throw new AgentClosedError(`no greeting within ${waitMs} ms`);
  };
  const { version, kernelRelease } = parseHello(await withinTime(frames.next(), waitMs, late));
  if (version !== PROTOCOL_VERSION) throw new AgentVersionError(`the agent speaks protocol version ${version}`);
  const nonce = crypto.getRandomValues(new BigUint64Array(1))[0] ?? 0n;
  frames.answer(encodeFrame(HostFrame.resume, 0, packIntegers([32, PROTOCOL_VERSION], [32, 0], [64, nonce])));
  // It answers when the requests of the earlier host that cannot be interrupted are over.
  const resumed = await frames.next();
  if (resumed.type === AgentFrame.error) throw new AgentVersionError(parseError(resumed).message);
  const isAnswer = resumed.type === AgentFrame.resumed && resumed.payload.byteLength >= HEAD_BYTES;
  if (!isAnswer || viewOf(resumed.payload).getBigUint64(0, true) !== nonce) throw unexpected(resumed);
  return { kernelRelease, resumed };
}

/** Reads frames one by one, and leaves what follows the last one. Lines for the log are dropped. */
class FrameReader {
  readonly #channel: ByteChannel;
  readonly #decoder = new FrameDecoder();
  #next = Promise.withResolvers<Frame>();
  #rest: Uint8Array = NOTHING;
  #isWaiting = false;
  #linesCount = 0;

  constructor(channel: ByteChannel) {
    this.#channel = channel;
    channel.pause();
    channel.onData((chunk) => this.#take(chunk));
  }

  /** Bytes that were read and are not part of a frame that `next` returned. The channel is paused. */
  get rest(): Uint8Array {
    return this.#rest;
  }

  /** @throws AgentProtocolError; AgentClosedError at the end of the stream */
  next(): Promise<Frame> {
    this.#next = Promise.withResolvers();
    this.#isWaiting = true;
    this.#take(this.#rest);
    if (this.#isWaiting) this.#channel.resume();
    return this.#next.promise;
  }

  /** Sends a frame. A stream that is closed says so to the reader, too. */
  answer(frame: Uint8Array): void {
    this.#channel.write(frame).catch(() => undefined);
  }

  #take(chunk: Uint8Array | null): void {
    if (chunk === null) {
      this.#next.reject(new AgentClosedError("the agent's stream closed"));
      return;
    }
    this.#rest = chunk;
    try {
      while (this.#isWaiting && this.#rest.byteLength > 0) {
        this.#rest = this.#decoder.push(this.#rest, (frame) => this.#give(frame), 1);
      }
    } catch (error) {
      this.#next.reject(error);
      this.#channel.pause();
    }
  }

  #give(frame: Frame): void {
    if (frame.type === AgentFrame.log) {
      this.#linesCount += 1;
      if (this.#linesCount > LINES_COUNT_MAX) throw new AgentProtocolError("the agent sends only lines for the log");
      return;
    }
    this.#isWaiting = false;
    this.#channel.pause();
    this.#next.resolve({ ...frame, payload: frame.payload.slice() });
  }
}

/** @throws AgentProtocolError unless an honest agent can have sent it */
function parseReport({ kernelRelease, resumed }: Answer): AgentReport {
  const view = viewOf(resumed.payload);
  const [disks, count] = [view.getUint32(8, true), view.getUint32(12, true)];
  const hasLength = resumed.payload.byteLength === HEAD_BYTES + count * SESSION_BYTES;
  if (!DISKS_STATES.has(disks) || count > PROCESSES_COUNT_MAX || !hasLength) throw unexpected(resumed);
  const sessions = Array.from({ length: count }, (_, index) => {
    const at = HEAD_BYTES + index * SESSION_BYTES;
    return parseSession(viewOf(resumed.payload.subarray(at, at + SESSION_BYTES)));
  });
  const named = sessions.flatMap(({ spid }) => (spid === 0 ? [] : [spid]));
  if (new Set(sessions.map(({ session }) => session)).size < count || new Set(named).size < named.length) {
    throw new AgentProtocolError("a session is listed twice");
  }
  return { kernelRelease, disks, sessions };
}

function parseSession(view: DataView): SessionReport {
  const word = (index: number) => view.getUint32(4 * index, true);
  /** A number that must be exact, of at most `max`. */
  const long = (index: number, max = Number.MAX_SAFE_INTEGER): number => {
    const value = view.getBigUint64(24 + 8 * index, true);
    if (value > max) throw new AgentProtocolError(`a session with ${value} in field ${index}`);
    return Number(value);
  };
  const [session, target, flags, pid, spid, zero] = [word(0), word(1), word(2), word(3), word(4), word(5)];
  const has = (flag: number) => (flags & flag) !== 0;
  const started = has(SessionFlag.started);
  const isSession = session > 0 && session < SESSION_GUEST_BIT && target < SESSION_GUEST_BIT && target !== session;
  const isKnown = (flags & ~FLAGS_ALL) === 0 && zero === 0 && started === pid > 0;
  const keptBytes = long(5, 2 * WINDOW_BYTES_INITIAL);
  if (!isSession || !isKnown) throw new AgentProtocolError(`session ${session} with flags ${flags} and pid ${pid}`);
  return {
    session,
    spid,
    target,
    started,
    finished: has(SessionFlag.finished),
    pid: started ? pid : null,
    hasTerminal: has(SessionFlag.terminal),
    isIdle: has(SessionFlag.idle),
    lingers: has(SessionFlag.linger),
    hasInput: has(SessionFlag.stdin),
    inputEnded: has(SessionFlag.stdinEnded),
    stdinTakenBytes: long(0),
    stdinCreditBytes: long(1, INPUT_WINDOW_BYTES_MAX),
    keptFrom: { stdout: long(2), stderr: long(3) },
    ranMs: long(4),
    keptBytes,
    limitMs: long(6),
  };
}

/**
 * The host's side of a command that an earlier host started: its window begins at the first byte that the agent has kept.
 * @param logged sizes of the outputs that are stored, or were dropped
 * @returns `skipped` the part of these that the agent sends again
 * @throws OutputGapError when the agent has forgotten output that is not stored; AgentProtocolError when more is stored than
 *   the agent can have sent
 */
export function attachedRecord(
  report: SessionReport,
  { logged, firstInput }: { readonly logged: OutputBytes; readonly firstInput: FirstInput },
): { readonly record: ProcessRecord; readonly skipped: OutputBytes } {
  const { session, pid, hasTerminal, keptFrom } = report;
  const skipped = { stdout: logged.stdout - keptFrom.stdout, stderr: logged.stderr - keptFrom.stderr };
  const [least, most] = [Math.min(skipped.stdout, skipped.stderr), Math.max(skipped.stdout, skipped.stderr)];
  if (least < 0) throw new OutputGapError(`the log lacks ${-least} bytes of session ${session}`);
  if (most > WINDOW_BYTES_INITIAL) throw new AgentProtocolError(`session ${session} has sent less than its log has`);
  const window = { sizeBytes: WINDOW_BYTES_INITIAL, creditBytes: WINDOW_BYTES_INITIAL, consumedBytes: 0 };
  const isOver = report.inputEnded || !(report.hasInput || hasTerminal);
  const record: ProcessRecord = {
    class: "process",
    session,
    pid,
    hasTerminal,
    stdout: { ...window, receivedBytes: keptFrom.stdout },
    stderr: { ...window, receivedBytes: keptFrom.stderr },
    stdin: { creditBytes: report.stdinCreditBytes, sentBytes: report.stdinTakenBytes, isOver },
    firstInput,
    unsentSize: null,
    unsentLimit: null,
  };
  return { record, skipped };
}
