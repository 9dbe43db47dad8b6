import type { ByteChannel } from "../vmm.ts";
import { AgentClosedError, AgentError, AgentProtocolError } from "./errors.ts";
import { encodeFrame, type Frame, FrameDecoder, viewOf } from "./frames.ts";
import * as protocol from "./protocol.ts";
import { AgentFrame } from "./protocol.ts";
import { guestText, type Session, type SessionClass } from "./sessions.ts";

/** Lines that one guest may add to the host's log. */
const LOG_LINES_MAX = 200;
const ERRNO_TRY_AGAIN = 11;

/** How many sessions of each class the agent has room for, and whether a further one waits for its turn or is refused. */
const CLASSES: Readonly<Record<SessionClass, { readonly countMax: number; readonly waits: boolean }>> = {
  process: { countMax: protocol.PROCESSES_COUNT_MAX, waits: false },
  task: { countMax: protocol.TASKS_COUNT_MAX, waits: true },
  connection: { countMax: protocol.CONNECTIONS_COUNT_MAX, waits: false },
};

/** A HOLD that was sent and no SYNC has ended. */
interface Hold {
  readonly released: PromiseWithResolvers<void>;
  /** answered: nothing may come any more, until SYNC was sent, which ends it */
  state: "sent" | "answered" | "ending";
}

export interface Hello {
  readonly kernelRelease: string;
}

/**
 * The stream to one agent: the table of the sessions that the host opened, and the order in which their frames are sent.
 * Every byte that comes may be hostile: what no honest agent sends closes the link with AgentProtocolError.
 */
export class AgentLink {
  readonly #channel: ByteChannel;
  readonly #log: (text: string) => void;
  readonly #decoder = new FrameDecoder();
  readonly #sessions = new Map<number, Session>();
  readonly #counts: Record<SessionClass, number> = { process: 0, task: 0, connection: 0 };
  readonly #hello = Promise.withResolvers<Hello>();
  /** Who waits for a session to end. */
  readonly #waiting: (() => void)[] = [];
  /** The end of the transmission before: a request's frames are sent together. */
  #transmission: Promise<unknown> = Promise.resolve();
  /** From the sending of HOLD on: what waits for the SYNC that ends it. */
  #hold: Hold | null = null;
  #lastSession = 0;
  #greeted = false;
  #logLines = 0;
  #closed: Error | null = null;

  constructor(channel: ByteChannel, log: (text: string) => void) {
    this.#channel = channel;
    this.#log = log;
    this.#hello.promise.catch(() => undefined);
    channel.onData((chunk) => this.#onBytes(chunk));
  }

  /** What the agent said first. */
  get hello(): Promise<Hello> {
    return this.#hello.promise;
  }

  /**
   * Opens a session in its turn and sends its frames; resolves when they are sent.
   * @throws AgentError EAGAIN when as many processes or connections are alive as the agent has room for
   */
  open(session: Session, transmit: (id: number) => Promise<void>): Promise<void> {
    return this.#inTurn(async () => {
      const { countMax, waits } = CLASSES[session.class];
      while (waits && this.#counts[session.class] >= countMax && this.#closed === null) await this.#sessionEnd();
      if (this.#counts[session.class] >= countMax) {
        throw new AgentError(ERRNO_TRY_AGAIN, `${countMax} sessions of this kind are alive in the guest`);
      }
      await transmit(this.#register(session));
    });
  }

  /** Waits while the stream is held. @throws AgentClosedError */
  async send(type: number, session: number, ...payload: readonly Uint8Array[]): Promise<void> {
    while (this.#hold !== null) await this.#hold.released.promise;
    await this.#write(type, session, ...payload);
  }

  /** Sends what nobody waits for; a failure shows in the session. */
  post(type: number, session: number, ...payload: readonly Uint8Array[]): void {
    this.send(type, session, ...payload).catch(() => undefined);
  }

  /**
   * Sends HOLD once all tasks are done. From then on nothing is sent, and nothing may come after the answer, until
   * `endHold`. The hold ends by itself when the agent refuses it.
   */
  async hold(session: Session, answer: Promise<unknown>): Promise<void> {
    await this.#inTurn(async () => {
      while (this.#counts.task > 0 && this.#closed === null) await this.#sessionEnd();
      while (this.#hold !== null) await this.#hold.released.promise;
      if (this.#closed !== null) throw this.#closed;
      const hold: Hold = { released: Promise.withResolvers(), state: "sent" };
      this.#hold = hold;
      const id = this.#register(session);
      answer.then(
        () => undefined,
        () => this.#release(hold),
      );
      await this.#write(protocol.HostFrame.hold, id);
    });
    await answer;
  }

  /** Sends a SYNC, at once when the stream is held: it ends the hold, and everything that waited is sent behind it. */
  async sync(session: Session, payload: readonly Uint8Array[]): Promise<void> {
    const hold = this.#hold;
    if (hold === null) return await this.open(session, (id) => this.send(protocol.HostFrame.sync, id, ...payload));
    const id = this.#register(session);
    hold.state = "ending";
    await this.#write(protocol.HostFrame.sync, id, ...payload);
    this.#release(hold);
  }

  /** Closes the link: every session fails with the first reason. */
  fail(error: Error): Error {
    if (this.#closed !== null) return this.#closed;
    this.#closed = error;
    this.#hello.reject(error);
    for (const session of this.#sessions.values()) session.fail(error);
    this.#sessions.clear();
    if (this.#hold !== null) this.#release(this.#hold);
    this.#wake();
    return error;
  }

  #inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#transmission.then(async () => {
      if (this.#closed !== null) throw this.#closed;
      await work();
    });
    this.#transmission = turn.catch(() => undefined);
    return turn;
  }

  #register(session: Session): number {
    if (this.#closed !== null) throw this.#closed;
    this.#lastSession += 1;
    // Two thousand million requests: by then the machine is older than any limit allows.
    if (this.#lastSession >= protocol.SESSION_GUEST_BIT) throw this.fail(new AgentClosedError("no session is left"));
    this.#sessions.set(this.#lastSession, session);
    this.#counts[session.class] += 1;
    return this.#lastSession;
  }

  #sessionEnd(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #wake(): void {
    for (const resume of this.#waiting.splice(0)) resume();
  }

  #release(hold: Hold): void {
    if (this.#hold === hold) this.#hold = null;
    hold.released.resolve();
  }

  async #write(type: number, session: number, ...payload: readonly Uint8Array[]): Promise<void> {
    if (this.#closed !== null) throw this.#closed;
    try {
      await this.#channel.write(encodeFrame(type, session, ...payload));
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
    try {
      this.#decoder.push(chunk, (frame) => this.#onFrame(frame));
    } catch (error) {
      // Only what the guest sent is its fault; a failing reader of output must be seen as what it is.
      this.fail(error instanceof Error ? error : new Error(String(error)));
      this.#channel.pause();
    }
  }

  #onFrame(frame: Frame): void {
    // What waits behind a frame that closed the link is not looked at.
    if (this.#closed !== null) return;
    if (this.#hold?.state === "answered") throw new AgentProtocolError(`a frame of type ${frame.type} during a hold`);
    if (frame.session === 0) {
      this.#onGeneral(frame);
      return;
    }
    const session = this.#sessions.get(frame.session);
    if (session === undefined) throw new AgentProtocolError(`a frame of type ${frame.type} for no session`);
    if (!session.onFrame(frame)) return;
    if (session.holds === true && frame.type === AgentFrame.done && this.#hold?.state === "sent") {
      this.#hold.state = "answered";
    }
    this.#sessions.delete(frame.session);
    this.#counts[session.class] -= 1;
    this.#wake();
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
}
