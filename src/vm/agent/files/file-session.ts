import { constants } from "node:os";
import { withinTime } from "../../../system/waiting.ts";
import { AgentError, AgentProtocolError } from "../errors.ts";
import { type Frame, packIntegers, viewOf } from "../frames.ts";
import { checkLength, parseError, unexpected } from "../payload.ts";
import type { ProcessLink } from "../process.ts";
import { AgentFrame, FRAME_PAYLOAD_BYTES_MAX, HostFrame, Stream, WINDOW_BYTES_INITIAL } from "../protocol.ts";
import type { Session } from "../sessions.ts";
import { InboundStream, OutboundStream, ReceiveWindow } from "../streams.ts";

/** Longest time without progress of a guest that the host waits for, in `milliseconds`. A slow client does not count. */
const STILL_MS_MAX = 30_000;

/** The part of the link to a guest that a request for files uses. */
export interface FileLink extends ProcessLink {
  /** As `AgentLink.open`. */
  open(session: Session, transmit: (id: number) => Promise<void>, signal: AbortSignal): Promise<void>;
  send(type: number, session: number, ...payload: readonly Uint8Array[]): Promise<void>;
  /** Closes the link with an error, unless it is closed. Returns the error with which it was closed. */
  fail(error: Error): Error;
}

/** One request for files. The window bounds the bytes that wait for their reader. */
export class FileSession implements Session, AsyncDisposable {
  readonly class: "file" | "watch";
  readonly #link: FileLink;
  readonly #window: ReceiveWindow;
  readonly #inbound: InboundStream;
  readonly #outbound: OutboundStream;
  readonly #done = Promise.withResolvers<bigint>();
  readonly #confirmed = Promise.withResolvers<void>();
  readonly #over = new AbortController();
  #id = 0;

  private constructor(link: FileLink, kind: "file" | "watch") {
    this.class = kind;
    this.#link = link;
    this.#window = new ReceiveWindow(
      (bytes) => link.post(HostFrame.window, this.#id, packIntegers([32, Stream.stdout], [32, bytes])),
      { sizeBytes: WINDOW_BYTES_INITIAL },
    );
    this.#inbound = new InboundStream(this.#window);
    this.#outbound = new OutboundStream(
      (take) =>
        link.sendMade(() => {
          const bytes = take();
          return this.over.aborted || bytes.byteLength === 0 ? null : [HostFrame.stdin, this.#id, bytes];
        }),
      { stream: Stream.stdin, pieceBytesMax: FRAME_PAYLOAD_BYTES_MAX },
    );
    this.#done.promise.catch(() => undefined);
  }

  /** Sends a request. @throws as `AgentLink.open` does; AgentError ETIMEDOUT when the guest does not take it */
  static async open(
    link: FileLink,
    kind: "file" | "watch",
    payload: Uint8Array,
    signal: AbortSignal,
  ): Promise<FileSession> {
    const session = new FileSession(link, kind);
    const late = new AbortController();
    const either = AbortSignal.any([signal, late.signal]);
    const opened = link.open(
      session,
      async (id) => {
        session.#id = id;
        await link.send(HostFrame.fileOpen, id, payload);
      },
      either,
    );
    try {
      await withinTime(opened, STILL_MS_MAX, () => {
        throw stalled();
      });
    } catch (error) {
      late.abort(error);
      // It may be under way to the guest.
      opened.then(
        () => session.leave(error as Error),
        () => undefined,
      );
      throw error;
    }
    const onAbort = () => session.leave(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    session.over.addEventListener("abort", () => signal.removeEventListener("abort", onAbort), { once: true });
    if (signal.aborted) onAbort();
    return session;
  }

  /** aborted when the request has ended in any way */
  get over(): AbortSignal {
    return this.#over.signal;
  }

  onFrame(frame: Frame): boolean {
    switch (frame.type) {
      case AgentFrame.output: {
        if (frame.payload.byteLength <= 4 || viewOf(frame.payload).getUint32(0, true) !== Stream.stdout) {
          throw unexpected(frame);
        }
        const bytes = frame.payload.subarray(4);
        if (this.over.aborted) this.#window.receive(bytes.byteLength);
        else this.#inbound.push(bytes);
        return false;
      }
      case AgentFrame.window:
        this.#outbound.credit(frame);
        return false;
      case AgentFrame.done:
        this.#finish(null, checkLength(frame, 8).getBigUint64(0, true));
        break;
      case AgentFrame.error:
        this.#finish(parseError(frame));
        break;
      default:
        throw unexpected(frame);
    }
    this.#confirmed.resolve();
    return true;
  }

  fail(error: Error): void {
    this.#finish(error);
    this.#confirmed.resolve();
  }

  /** Ends the request, and the work in the guest. Does nothing when it has ended. */
  leave(error: Error): void {
    if (this.over.aborted) return;
    this.#link.post(HostFrame.fileEnd, this.#id);
    this.#finish(error);
  }

  /**
   * The guest's bytes, for one reader.
   * @param stillMs longest time that the guest may take for the next ones, in `milliseconds`
   */
  async *chunks(stillMs = STILL_MS_MAX): AsyncGenerator<Uint8Array, void, undefined> {
    const chunks = this.#inbound.chunks();
    for (;;) {
      const step = await this.#patient(chunks.next(), stillMs);
      if (step.done === true) return;
      yield step.value;
    }
  }

  /** Sends bytes as fast as the guest takes them. Resolves to false when it takes no more. */
  async write(bytes: Uint8Array): Promise<boolean> {
    for (let offset = 0; offset < bytes.byteLength; offset += FRAME_PAYLOAD_BYTES_MAX) {
      const piece = bytes.subarray(offset, offset + FRAME_PAYLOAD_BYTES_MAX);
      if (!(await this.#patient(this.#outbound.write(piece), STILL_MS_MAX))) return false;
    }
    return true;
  }

  /** Requests a record of what happened before, from a watch. */
  sync(): void {
    if (!this.over.aborted) this.#link.post(HostFrame.fileSync, this.#id);
  }

  /** Ends the bytes. */
  async end(): Promise<void> {
    await this.#outbound.close(() =>
      this.#link.sendMade(() => (this.over.aborted ? null : [HostFrame.stdin, this.#id])),
    );
  }

  /** Does work that decodes the guest's bytes. Bytes that no honest agent sends close the link. */
  decode<T>(work: () => T): T {
    try {
      return work();
    } catch (error) {
      throw error instanceof AgentProtocolError ? this.#link.fail(error) : error;
    }
  }

  /** The number in the guest's DONE. @throws the error of the request */
  done(): Promise<bigint> {
    return this.#patient(this.#done.promise, STILL_MS_MAX);
  }

  /** Ends the request, and waits until the guest has confirmed that, but not for long. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.leave(new AgentError(constants.errno.ECANCELED, "the request was ended"));
    await withinTime(this.#confirmed.promise, STILL_MS_MAX, () => undefined);
  }

  async #patient<T>(work: Promise<T>, stillMs: number): Promise<T> {
    if (stillMs === Number.POSITIVE_INFINITY) return await work;
    return await withinTime(work, stillMs, () => {
      const error = stalled();
      this.leave(error);
      throw error;
    });
  }

  #finish(error: Error | null, value = 0n): void {
    if (error === null) this.#done.resolve(value);
    else this.#done.reject(error);
    this.#inbound.finish(error);
    this.#outbound.stop();
    this.#over.abort();
  }
}

function stalled(): AgentError {
  return new AgentError(constants.errno.ETIMEDOUT, "the guest made no progress");
}

/**
 * Requests for all events of one watch up to now. A request that comes while another one is under way waits for the next
 * answer, which is for all that came meanwhile: events before it may be behind the present answer.
 */
export class WatchSyncs implements Disposable {
  #post: (() => void) | null = null;
  #under: PromiseWithResolvers<void> | null = null;
  #next: PromiseWithResolvers<void> | null = null;
  #isOver = false;

  /** Resolves when the reader of the watch has taken every event before this call. @throws AgentError when the watch ends */
  async request(): Promise<void> {
    if (this.#isOver) throw ended();
    if (this.#next === null) {
      this.#next = Promise.withResolvers();
      // The watch may end before anybody waits.
      this.#next.promise.catch(() => undefined);
    }
    const { promise } = this.#next;
    this.#send();
    return await promise;
  }

  /** Begins with the requests: the watch is ready. @param post sends a request */
  open(post: () => void): void {
    this.#post = post;
    this.#send();
  }

  /** Ends the request under way. Does nothing without one: a guest may send answers unasked. */
  answer(): void {
    this.#under?.resolve();
    this.#under = null;
    this.#send();
  }

  [Symbol.dispose](): void {
    this.#isOver = true;
    for (const waiting of [this.#under, this.#next]) waiting?.reject(ended());
  }

  #send(): void {
    if (this.#post === null || this.#under !== null || this.#next === null) return;
    this.#under = this.#next;
    this.#next = null;
    this.#post();
  }
}

function ended(): AgentError {
  return new AgentError(constants.errno.ECANCELED, "the watch has ended");
}
