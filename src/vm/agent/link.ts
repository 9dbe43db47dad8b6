import { untilAborted } from "../../system/waiting.ts";
import type { ByteChannel } from "../vmm.ts";
import { WindowGrowth } from "./connection.ts";
import { AgentClosedError, AgentError, AgentProtocolError } from "./errors.ts";
import { encodeFrame, type Frame, FrameDecoder } from "./frames.ts";
import { GuestRequests } from "./guest-network.ts";
import { guestText, type Hello, parseHello, unexpected } from "./payload.ts";
import * as protocol from "./protocol.ts";
import { AgentFrame } from "./protocol.ts";
import type { ResumedStream } from "./reconnect.ts";
import type { AgentRecord } from "./record.ts";
import { RequestQueue } from "./request-queue.ts";
import { type FrameParts, type Hold, partsOf, recordOf, type Session, sessionCounts } from "./sessions.ts";

/** Limit of lines that one guest may add to the host's log. */
const LOG_LINES_MAX = 200;
const ERRNO_TRY_AGAIN = 11;
const NEVER = new AbortController().signal;

/** Frames of one guest that are handled in one turn of the event loop, which serves all guests and all callers. */
const TURN_FRAMES_COUNT_MAX = 128;
/**
 * Limit of frames that the host has posted and the guest has not read. Credit and the limits of sessions keep an
 * honest guest, whose frames cause them, far below it.
 */
const UNSENT_COUNT_MAX = 8192;
/** Limit of unsent frames for requests of callers, so that callers alone never come near the limit above. */
const ASKED_COUNT_MAX = 1024;

/**
 * The stream to one agent: its sessions, and the order of their frames. Connections take turns, one frame each, and wait
 * for nothing else; all other frames are sent before those that wait for a turn. Every byte from the guest
 * may be hostile; a violation of the protocol closes the link with AgentProtocolError.
 */
export class AgentLink {
  readonly #channel: ByteChannel;
  readonly #log: (text: string) => void;
  readonly #decoder = new FrameDecoder();
  readonly #sessions = new Map<number, Session>();
  readonly #counts = sessionCounts();
  readonly #hello = Promise.withResolvers<Hello>();
  /** the guest's requests for connections and names */
  readonly requests: GuestRequests;
  readonly growth = new WindowGrowth();
  /** Callbacks that wait for a session to end. */
  readonly #waiting: (() => void)[] = [];
  /** The frames of one request are sent without others in between. */
  readonly #requests = new RequestQueue();
  /** The end of the last turn of a connection. */
  #turns: Promise<unknown> = Promise.resolve();
  #unsentCount = 0;
  /** Posted during a hold. */
  readonly #postponed: FrameParts[];
  /** Set from the sending of HOLD to the SYNC that ends it. */
  #hold: Hold | null;
  #lastSession: number;
  #greeted: boolean;
  #logLines: number;
  /** frames that can still be handled before a pause of one turn */
  #leftCount = TURN_FRAMES_COUNT_MAX;
  readonly #onNext = (frame: Frame) => this.#onFrame(frame);
  #closed: Error | null = null;
  /** bytes that follow RESUMED */
  readonly #rest: Uint8Array;

  /**
   * @param from an earlier stream to continue, which is held until the next SYNC
   * @param resumed a stream that begins with RESUMED; it is read from the call of `proceed` on
   */
  constructor(
    channel: ByteChannel,
    log: (text: string) => void = () => undefined,
    { from, resumed }: { readonly from?: AgentRecord; readonly resumed?: ResumedStream } = {},
  ) {
    this.#channel = channel;
    this.#log = log;
    this.requests = new GuestRequests(this, from);
    this.#hold = from === undefined ? null : { released: Promise.withResolvers(), state: "answered" };
    const sessions = resumed?.report.sessions.map(({ session }) => session) ?? [];
    this.#lastSession = from?.lastSession ?? Math.max(0, ...sessions);
    this.#greeted = from?.greeted ?? resumed !== undefined;
    this.#rest = resumed?.rest ?? new Uint8Array();
    this.#logLines = from?.logLines ?? 0;
    this.#postponed = partsOf(from?.frames ?? []);
    this.#unsentCount = this.#postponed.length;
    this.#hello.promise.catch(() => undefined);
    if (resumed !== undefined) this.#hello.resolve(resumed.report);
    channel.onData((chunk) => this.#onBytes(chunk));
  }

  /** The host's side of the stream, which a hold must keep still. @throws Error without a hold */
  record(): AgentRecord {
    const isStill = this.#hold?.state === "answered" && this.#decoder.isBetweenFrames;
    if (!isStill || this.#closed !== null) throw new Error("the stream is not held");
    const sessions = [...this.#sessions.values()].flatMap((session) => session.record?.() ?? []);
    const { answers, ...requests } = this.requests.record();
    const ended = [...this.#sessions].filter(([, { awaitsForget }]) => awaitsForget === true);
    const forgets = ended.map(([id]): FrameParts => [protocol.HostFrame.forget, id]);
    return {
      greeted: this.#greeted,
      logLines: this.#logLines,
      lastSession: this.#lastSession,
      ...requests,
      processes: sessions.filter((session) => session.class === "process"),
      connections: sessions.filter((session) => session.class === "connection"),
      frames: recordOf([...this.#postponed, ...answers, ...forgets]),
    };
  }

  /** Reads a resumed stream. The sessions of the report must have been admitted. */
  proceed(): void {
    this.#continue(this.#rest);
  }

  /** Resolves when the host has sent the FORGET of every session that has ended. */
  async forgotten(): Promise<void> {
    const awaited = () => [...this.#sessions.values()].some(({ awaitsForget }) => awaitsForget === true);
    while (awaited()) await this.#sessionEnd();
  }

  /** The agent's greeting. */
  get hello(): Promise<Hello> {
    return this.#hello.promise;
  }

  /**
   * Waits for its turn, opens a session and sends its frames. Resolves when they are sent.
   * @param signal cancels the request while it waits for its turn
   * @throws AgentError EAGAIN when the agent has no room for another process or connection; the reason of `signal`
   */
  async open(session: Session, transmit: (id: number) => Promise<void>, signal?: AbortSignal): Promise<void> {
    const count = this.#counts[session.class];
    if (!count.waits && !count.hasRoom) {
      throw new AgentError(ERRNO_TRY_AGAIN, `${count.countMax} sessions of this kind are alive in the guest`);
    }
    count.queued += 1;
    using stack = new DisposableStack();
    stack.defer(() => {
      count.queued -= 1;
    });
    await this.#requests.run(async () => {
      while (count.waits && count.open >= count.countMax && this.#closed === null) await this.#sessionEnd();
      // A record must have only sessions that the guest has.
      while (this.#hold !== null) await this.#hold.released.promise;
      stack.dispose();
      await transmit(this.#register(session));
    }, signal);
  }

  /** Sends a frame, after the end of a hold if there is one. @throws AgentClosedError */
  send(...frame: FrameParts): Promise<void> {
    return this.sendMade(() => frame);
  }

  /** Sends the frame of `make`, or none when that is null. `make` is called when the frame can be sent. */
  async sendMade(make: () => FrameParts | null): Promise<void> {
    while (this.#hold !== null) await this.#hold.released.promise;
    const frame = make();
    if (frame !== null) await this.#write(...frame);
  }

  /** Sends a frame without waiting. A failure fails the session. */
  post(...frame: FrameParts): void {
    if (this.#unsentCount >= UNSENT_COUNT_MAX) {
      this.#blame(new AgentProtocolError("the guest sends requests and reads no answers"));
      return;
    }
    this.#unsentCount += 1;
    if (this.#hold === null) this.#writePosted(frame);
    else this.#postponed.push(frame);
  }

  /**
   * Sends a frame that a caller asked for, as `post` does.
   * @throws AgentError EAGAIN when too many frames wait for the guest to take them
   */
  postAsked(type: number, session: number, ...payload: readonly Uint8Array[]): void {
    if (this.#unsentCount >= ASKED_COUNT_MAX) {
      throw new AgentError(ERRNO_TRY_AGAIN, `${this.#unsentCount} frames wait for the guest`);
    }
    this.post(type, session, ...payload);
  }

  /** Sends the frame of `make`, or none when that is null, after the frames that wait for their turns. */
  sendInTurn(make: () => FrameParts | null): Promise<void> {
    const turn = this.#turns.then(() => this.sendMade(make));
    this.#turns = turn.catch(() => undefined);
    return turn;
  }

  /** Connections that are open or being opened, by either side. */
  get connectionsCount(): number {
    return this.#counts.connection.open;
  }

  /** Registers a session that the guest opened, or of a record; false when the guest has too many of its kind. */
  admit(id: number, session: Session): boolean {
    if (!this.#counts[session.class].hasRoom) return false;
    this.#sessions.set(id, session);
    this.#counts[session.class].open += 1;
    return true;
  }

  /** Forgets a session of which the host sent the last frame. */
  forget(id: number): void {
    const session = this.#sessions.get(id);
    if (session === undefined) return;
    this.#sessions.delete(id);
    this.#counts[session.class].open -= 1;
    this.#wake();
  }

  /**
   * Sends HOLD when all tasks are done, and ends the requests for files. Until the SYNC nothing else is sent, and after the
   * answer nothing may arrive. The hold ends when the agent refuses it.
   * @param signal ends the wait; when `isHeld` is true then, a SYNC must follow
   */
  async hold(
    session: Session,
    answer: Promise<unknown>,
    signal: AbortSignal = NEVER,
    type: number = protocol.HostFrame.hold,
  ): Promise<void> {
    await this.#requests.run(async () => {
      const isHeld = new AgentError(ERRNO_TRY_AGAIN, "the machine is held for a copy");
      for (const session of this.#sessions.values()) session.leave?.(isHeld);
      while (this.#endingCount > 0 && this.#closed === null) await untilAborted(this.#sessionEnd(), signal);
      while (this.#hold !== null) await this.#hold.released.promise;
      if (this.#closed !== null) throw this.#closed;
      const hold: Hold = { released: Promise.withResolvers(), state: "sent" };
      this.#hold = hold;
      const id = this.#register(session);
      answer.then(
        () => undefined,
        () => this.#release(hold),
      );
      await this.#write(type, id);
    }, signal);
    await untilAborted(answer, signal);
  }

  /** True from the sending of HOLD to the SYNC that ends it. */
  get isHeld(): boolean {
    return this.#hold !== null;
  }

  /** As `hold`, with LEAVE and for ever. Sessions of processes neither end nor fail: they continue without this host. */
  async leave(session: Session, answer: Promise<unknown>): Promise<void> {
    await this.hold(session, answer, NEVER, protocol.HostFrame.leave);
    for (const [id, { class: kind }] of this.#sessions) if (kind === "process") this.#sessions.delete(id);
    this.fail(new AgentClosedError("the host has left the agent"));
  }

  /** Sends a SYNC. During a hold it is sent at once and ends the hold; waiting frames follow it. */
  async sync(session: Session, payload: readonly Uint8Array[]): Promise<void> {
    const hold = this.#hold;
    if (hold === null) return await this.open(session, (id) => this.send(protocol.HostFrame.sync, id, ...payload));
    const id = this.#register(session);
    hold.state = "ending";
    await this.#write(protocol.HostFrame.sync, id, ...payload);
    this.#release(hold);
  }

  /** Closes the link and fails every session with the first error. */
  fail(error: Error): Error {
    if (this.#closed !== null) return this.#closed;
    this.#closed = error;
    this.#hello.reject(error);
    this.requests.stop();
    this.#requests.close(error);
    for (const session of this.#sessions.values()) session.fail(error);
    this.#sessions.clear();
    if (this.#hold !== null) this.#release(this.#hold);
    this.#wake();
    return error;
  }

  /** Sessions that end before a hold. */
  get #endingCount(): number {
    return this.#counts.task.open + this.#counts.file.open + this.#counts.watch.open;
  }

  #register(session: Session): number {
    if (this.#closed !== null) throw this.#closed;
    this.#lastSession += 1;
    // Two thousand million requests: a machine does not live that long.
    if (this.#lastSession >= protocol.SESSION_GUEST_BIT) throw this.fail(new AgentClosedError("no session is left"));
    this.#sessions.set(this.#lastSession, session);
    this.#counts[session.class].open += 1;
    return this.#lastSession;
  }

  #sessionEnd(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #wake(): void {
    for (const resume of this.#waiting.splice(0)) resume();
  }

  #release(hold: Hold): void {
    if (this.#hold !== hold) return;
    this.#hold = null;
    for (const frame of this.#postponed.splice(0)) this.#writePosted(frame);
    hold.released.resolve();
  }

  #writePosted(frame: FrameParts): void {
    const settled = () => {
      this.#unsentCount -= 1;
    };
    this.#write(...frame).then(settled, settled);
  }

  async #write(...frame: FrameParts): Promise<void> {
    if (this.#closed !== null) throw this.#closed;
    try {
      await this.#channel.write(encodeFrame(...frame));
    } catch (error) {
      throw this.fail(new AgentClosedError("the agent's stream is closed", { cause: error }));
    }
  }

  #onBytes(chunk: Uint8Array | null): void {
    if (this.#closed !== null) return;
    if (chunk === null) {
      this.fail(new AgentClosedError("the agent's stream closed"));
      return;
    }
    this.#take(chunk);
  }

  /** Handles the frames of a chunk, as many as the turn of the event loop has room for, and the others in later turns. */
  #take(chunk: Uint8Array): void {
    let rest: Uint8Array;
    try {
      rest = this.#decoder.push(chunk, this.#onNext, this.#leftCount);
    } catch (error) {
      // AgentProtocolError blames the guest. An exception of an output handler must keep its type.
      this.#blame(error instanceof Error ? error : new Error(String(error)));
      return;
    }
    if (this.#leftCount > 0) return;
    this.#channel.pause();
    setImmediate(() => this.#continue(rest));
  }

  #continue(rest: Uint8Array): void {
    if (this.#closed !== null) return;
    this.#leftCount = TURN_FRAMES_COUNT_MAX;
    this.#take(rest);
    if (this.#leftCount > 0 && this.#closed === null) this.#channel.resume();
  }

  #blame(error: Error): void {
    this.fail(error);
    this.#channel.pause();
  }

  #onFrame(frame: Frame): void {
    this.#leftCount -= 1;
    // Frames after one that closed the link are ignored.
    if (this.#closed !== null) return;
    if (this.#hold?.state === "answered") throw new AgentProtocolError(`a frame of type ${frame.type} during a hold`);
    if (frame.type === AgentFrame.netOpen) this.requests.onOpen(frame);
    else if (frame.type === AgentFrame.resolve) this.requests.onResolve(frame);
    else if (frame.session === 0) this.#onGeneral(frame);
    else this.#onSession(frame);
  }

  #onSession(frame: Frame): void {
    const session = this.#sessions.get(frame.session);
    if (session === undefined && this.#crossed(frame)) return;
    if (session === undefined) throw new AgentProtocolError(`a frame of type ${frame.type} for no session`);
    if (!session.onFrame(frame)) return;
    if (session.holds === true && frame.type === AgentFrame.done && this.#hold?.state === "sent") {
      this.#hold.state = "answered";
    }
    this.forget(frame.session);
  }

  /** True for a reset by the guest that the host's refusal has crossed. */
  #crossed({ type, session, payload }: Frame): boolean {
    return type === AgentFrame.netReset && payload.byteLength === 0 && this.requests.hasHad(session);
  }

  #onGeneral(frame: Frame): void {
    if (frame.type === AgentFrame.log) {
      this.#logLines += 1;
      if (this.#logLines <= LOG_LINES_MAX) this.#log(guestText(frame.payload));
      return;
    }
    const { version, kernelRelease } = parseHello(frame);
    if (this.#greeted) throw unexpected(frame);
    this.#greeted = true;
    if (version !== protocol.PROTOCOL_VERSION) throw new AgentProtocolError(`protocol version ${version}`);
    this.#hello.resolve({ kernelRelease });
  }
}
