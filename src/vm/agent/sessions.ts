import { type Frame, viewOf } from "./frames.ts";
import { checkLength, parseError, unexpected } from "./payload.ts";
import * as protocol from "./protocol.ts";
import { AgentFrame, Stream, WINDOW_BYTES_INITIAL } from "./protocol.ts";
import { type ConnectionRecord, type FrameRecord, fromBase64, type ProcessRecord, toBase64 } from "./record.ts";
import { InboundStream, ReceiveWindow } from "./streams.ts";

/** The limit of the agent that a session counts against. */
export type SessionClass = "process" | "task" | "connection" | "file" | "watch";

/** One request under way. */
export interface Session {
  readonly class: SessionClass;
  /** true: after its DONE the agent sends nothing until the next SYNC */
  readonly holds?: boolean;
  /** true: its last frame has arrived, and the host has to send a FORGET */
  readonly awaitsForget?: boolean;
  /** Handles a frame; returns true for the last one of the session. @throws AgentProtocolError */
  onFrame(frame: Frame): boolean;
  /** Ends the session with an error; no frame follows. */
  fail(error: Error): void;
  /** The session during a hold; null when it is over. Omitted by tasks and requests for files, which end before a hold. */
  record?(): ProcessRecord | ConnectionRecord | null;
  /** Asks the guest to end the session, which may otherwise last for any time. Sessions with a record need not end. */
  leave?(error: Error): void;
}

/** A HOLD that the host sent and has not ended with a SYNC. */
export interface Hold {
  readonly released: PromiseWithResolvers<void>;
  /** answered: the agent may send nothing. ending: the SYNC is being sent. */
  state: "sent" | "answered" | "ending";
}

/** A frame to send. */
export type FrameParts = readonly [type: number, session: number, ...payload: readonly Uint8Array[]];

/** Frames as plain data. */
export function recordOf(frames: readonly FrameParts[]): FrameRecord[] {
  return frames.map(([type, session, ...payload]) => ({ type, session, payload: toBase64(Buffer.concat(payload)) }));
}

/** Frames of a record. */
export function partsOf(frames: readonly FrameRecord[]): FrameParts[] {
  return frames.map(({ type, session, payload }) => [type, session, fromBase64(payload)]);
}

/**
 * Limits of sessions by class, and whether a further session waits (`waits`) or is refused. A session that can be refused
 * counts from the request on, so that a guest which reads nothing cannot make the host keep more of them.
 */
const CLASSES: Readonly<Record<SessionClass, { readonly countMax: number; readonly waits: boolean }>> = {
  process: { countMax: protocol.PROCESSES_COUNT_MAX, waits: false },
  task: { countMax: protocol.TASKS_COUNT_MAX, waits: true },
  connection: { countMax: protocol.CONNECTIONS_COUNT_MAX, waits: false },
  file: { countMax: protocol.FILES_COUNT_MAX, waits: false },
  watch: { countMax: protocol.WATCHES_COUNT_MAX, waits: false },
};

/** The numbers of sessions of one class, in one guest. */
class SessionCount {
  readonly countMax: number;
  readonly waits: boolean;
  open = 0;
  /** requests whose sessions are not open yet */
  queued = 0;

  constructor(kind: SessionClass) {
    ({ countMax: this.countMax, waits: this.waits } = CLASSES[kind]);
  }

  get hasRoom(): boolean {
    return this.open + this.queued < this.countMax;
  }
}

/** The numbers of sessions of one guest. */
export function sessionCounts(): Readonly<Record<SessionClass, SessionCount>> {
  const [process, task, connection] = [
    new SessionCount("process"),
    new SessionCount("task"),
    new SessionCount("connection"),
  ];
  return { process, task, connection, file: new SessionCount("file"), watch: new SessionCount("watch") };
}

/** A request whose answer is one frame with a number. */
export class ReplySession implements Session {
  readonly class = "task";
  readonly holds: boolean;
  readonly answer: Promise<bigint>;
  /** true when no more frames need to be sent for the request */
  ended = false;
  readonly #type: number;
  readonly #settle = Promise.withResolvers<bigint>();

  /**
   * @param type frame type of the answer
   * @param holds true when the agent sends nothing after the answer until the next SYNC
   */
  constructor(type: number, holds = false) {
    this.#type = type;
    this.holds = holds;
    this.answer = this.#settle.promise;
    // The request may fail while its data is still being sent, before anybody waits for the answer.
    this.answer.catch(() => undefined);
  }

  onFrame(frame: Frame): boolean {
    if (frame.type === AgentFrame.error) this.fail(parseError(frame));
    else if (frame.type === this.#type) this.#settle.resolve(checkLength(frame, 8).getBigUint64(0, true));
    else throw unexpected(frame);
    this.ended = true;
    return true;
  }

  fail(error: Error): void {
    this.ended = true;
    this.#settle.reject(error);
  }
}

/** A scratch without writes. Disposal thaws it. */
export interface Quiesced extends AsyncDisposable {
  /**
   * Allows writes again; further calls return the same promise. Resolves to the time without writes, in nanoseconds.
   * @throws AgentError when writes resumed before this call, so that a copy of the scratch is useless: ETIMEDOUT, the
   *   limit ended; ECANCELED, a process reached its time limit; EINVAL, the guest thawed the file system
   */
  thaw(): Promise<bigint>;
}

/** The session of a quiesced scratch. */
export class QuiesceSession implements Session, Quiesced {
  readonly class = "task";
  /** set when the session is registered */
  id = 0;
  readonly #askThaw: (id: number) => void;
  readonly #still = Promise.withResolvers<void>();
  readonly #ended = Promise.withResolvers<bigint>();
  /** true when the thaw was requested, or cannot be */
  #isOver = false;
  #isStill = false;

  /** @param askThaw requests the end of the session */
  constructor(askThaw: (id: number) => void) {
    this.#askThaw = askThaw;
    // A caller may wait for only one of them.
    this.#still.promise.catch(() => undefined);
    this.#ended.promise.catch(() => undefined);
  }

  get still(): Promise<void> {
    return this.#still.promise;
  }

  thaw(): Promise<bigint> {
    if (!this.#isOver) this.#askThaw(this.id);
    this.#isOver = true;
    return this.#ended.promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // Callers of `thaw` get the error.
    await this.thaw().catch(() => undefined);
  }

  onFrame(frame: Frame): boolean {
    if (frame.type === AgentFrame.quiesced && !this.#isStill) {
      checkLength(frame, 0);
      this.#isStill = true;
      this.#still.resolve();
      return false;
    }
    if (frame.type === AgentFrame.error) this.fail(parseError(frame));
    else if (frame.type === AgentFrame.done && this.#isStill) {
      this.#ended.resolve(checkLength(frame, 8).getBigUint64(0, true));
    } else throw unexpected(frame);
    this.#isOver = true;
    return true;
  }

  fail(error: Error): void {
    this.#isOver = true;
    this.#still.reject(error);
    this.#ended.reject(error);
  }
}

/** The session of a disk's listing. The window bounds the bytes that wait for the reader. */
export class IndexSession implements Session {
  readonly class = "task";
  readonly #inbound: InboundStream;

  constructor(grant: (bytes: number) => void) {
    this.#inbound = new InboundStream(new ReceiveWindow(grant, { sizeBytes: WINDOW_BYTES_INITIAL }));
  }

  onFrame(frame: Frame): boolean {
    if (frame.type === AgentFrame.output) {
      if (frame.payload.byteLength <= 4 || viewOf(frame.payload).getUint32(0, true) !== Stream.stdout)
        throw unexpected(frame);
      this.#inbound.push(frame.payload.subarray(4));
      return false;
    }
    if (frame.type === AgentFrame.done) checkLength(frame, 8);
    else if (frame.type !== AgentFrame.error) throw unexpected(frame);
    this.#inbound.finish(frame.type === AgentFrame.error ? parseError(frame) : null);
    return true;
  }

  fail(error: Error): void {
    this.#inbound.finish(error);
  }

  /** Chunks as they arrive. A reader that stops early must end the machine, because the agent waits for credit. */
  chunks(): AsyncGenerator<Uint8Array> {
    return this.#inbound.chunks();
  }
}
