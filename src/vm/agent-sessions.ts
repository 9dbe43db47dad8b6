import { ByteBlocks } from "../domain/byte-blocks.ts";
import { AgentError, AgentProtocolError } from "./agent-errors.ts";
import { type Frame, viewOf } from "./frames.ts";
import { AgentFrame, ExitFlag, Stream, WINDOW_BYTES_INITIAL } from "./protocol.ts";

/** Text of the guest in an error or a log line, in `bytes`. */
const TEXT_BYTES_MAX = 1024;
/** Credit is given back in pieces of at least this many bytes, so that a frame of ours answers many of theirs. */
const CREDIT_BYTES_MIN = WINDOW_BYTES_INITIAL / 2;
const EXIT_FLAGS_ALL = ExitFlag.timedOut | ExitFlag.oomKilled;
const EXIT_CODE_MAX = 255;

/** What a command came to, as the guest measured it. */
export interface AgentExit {
  /** 128+n when signal n ended the command */
  readonly exitCode: number;
  readonly timedOut: boolean;
  readonly oomKilled: boolean;
  readonly cpuTimeUs: bigint;
  readonly memoryPeakBytes: bigint;
  readonly wallUs: bigint;
}

export type OutputStream = "stdout" | "stderr";

/** One request under way. */
export interface Session {
  /** Takes a frame; true when it was the last one. @throws AgentProtocolError */
  onFrame(frame: Frame): boolean;
  /** Ends the session: no frame will come any more. */
  fail(error: Error): void;
}

/** Gives the agent credit for more bytes of a stream. */
export type Grant = (stream: number, bytes: number) => void;

/** Text of the guest for people: short, and without control characters that a terminal obeys. */
export function guestText(bytes: Uint8Array): string {
  const text = Buffer.from(bytes.subarray(0, TEXT_BYTES_MAX)).toString("utf8");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is replaced.
  return text.replace(/[\x00-\x1f\x7f-\x9f]/g, "?");
}

function unexpected(frame: Frame): AgentProtocolError {
  return new AgentProtocolError(`a frame of type ${frame.type} and ${frame.payload.byteLength} bytes out of place`);
}

function checkLength(frame: Frame, bytes: number): DataView {
  if (frame.payload.byteLength !== bytes) throw unexpected(frame);
  return viewOf(frame.payload);
}

function parseError(frame: Frame): AgentError {
  if (frame.payload.byteLength < 8) throw unexpected(frame);
  const view = viewOf(frame.payload);
  if (view.getUint32(4, true) !== 0) throw unexpected(frame);
  return new AgentError(view.getUint32(0, true), guestText(frame.payload.subarray(8)));
}

/** A request that one frame answers, with a number in it. */
export class ReplySession implements Session {
  readonly answer: Promise<bigint>;
  /** true once nothing more needs to be sent for the request */
  ended = false;
  readonly #type: number;
  readonly #settle = Promise.withResolvers<bigint>();

  /** @param type of the answer */
  constructor(type: number) {
    this.#type = type;
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

/** How much of a stream the agent may still send. */
class ReceiveWindow {
  readonly #grant: (bytes: number) => void;
  #creditBytes = WINDOW_BYTES_INITIAL;
  #consumedBytes = 0;

  constructor(grant: (bytes: number) => void) {
    this.#grant = grant;
  }

  receive(bytes: number): void {
    if (bytes > this.#creditBytes) throw new AgentProtocolError("output beyond its credit");
    this.#creditBytes -= bytes;
  }

  consume(bytes: number): void {
    this.#consumedBytes += bytes;
    if (this.#consumedBytes < CREDIT_BYTES_MIN) return;
    this.#creditBytes += this.#consumedBytes;
    this.#grant(this.#consumedBytes);
    this.#consumedBytes = 0;
  }
}

export class ExecSession implements Session {
  readonly #started = Promise.withResolvers<void>();
  readonly #exit = Promise.withResolvers<AgentExit>();
  readonly #onOutput: (stream: OutputStream, chunk: Uint8Array) => void;
  readonly #windows: ReadonlyMap<number, ReceiveWindow>;
  ended = false;
  #hasStarted = false;
  #stdinCredit = WINDOW_BYTES_INITIAL;
  /** Wakes the sender of standard input. */
  #wake: (() => void) | null = null;

  constructor(grant: Grant, onOutput: (stream: OutputStream, chunk: Uint8Array) => void) {
    this.#onOutput = onOutput;
    this.#windows = new Map(
      [Stream.stdout, Stream.stderr].map((stream) => [stream, new ReceiveWindow((bytes) => grant(stream, bytes))]),
    );
    // A caller may wait for one of them only.
    this.#started.promise.catch(() => undefined);
    this.#exit.promise.catch(() => undefined);
  }

  get started(): Promise<void> {
    return this.#started.promise;
  }

  get exit(): Promise<AgentExit> {
    return this.#exit.promise;
  }

  onFrame(frame: Frame): boolean {
    switch (frame.type) {
      case AgentFrame.started:
        checkLength(frame, 4);
        if (this.#hasStarted) throw unexpected(frame);
        this.#hasStarted = true;
        this.#started.resolve();
        return false;
      case AgentFrame.output:
        this.#output(frame);
        return false;
      case AgentFrame.window:
        this.#credit(frame);
        return false;
      case AgentFrame.exit:
        this.#exit.resolve(parseExit(frame));
        this.#started.resolve();
        this.#end();
        return true;
      case AgentFrame.error:
        this.fail(parseError(frame));
        return true;
      default:
        throw unexpected(frame);
    }
  }

  fail(error: Error): void {
    this.#started.reject(error);
    this.#exit.reject(error);
    this.#end();
  }

  /** Waits until standard input takes bytes; returns how many, at most `wantedBytes`; 0 when the session ended. */
  async takeStdinCredit(wantedBytes: number): Promise<number> {
    while (this.#stdinCredit === 0 && !this.ended) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    if (this.ended) return 0;
    const bytes = Math.min(wantedBytes, this.#stdinCredit);
    this.#stdinCredit -= bytes;
    return bytes;
  }

  #output(frame: Frame): void {
    if (frame.payload.byteLength < 4) throw unexpected(frame);
    const stream = viewOf(frame.payload).getUint32(0, true);
    const window = this.#windows.get(stream);
    if (window === undefined) throw unexpected(frame);
    const bytes = frame.payload.subarray(4);
    window.receive(bytes.byteLength);
    this.#onOutput(stream === Stream.stdout ? "stdout" : "stderr", bytes);
    window.consume(bytes.byteLength);
  }

  #credit(frame: Frame): void {
    const view = checkLength(frame, 8);
    const bytes = view.getUint32(4, true);
    // More than what was sent cannot come back.
    if (view.getUint32(0, true) !== Stream.stdin || bytes > WINDOW_BYTES_INITIAL - this.#stdinCredit)
      throw unexpected(frame);
    this.#stdinCredit += bytes;
    this.#wake?.();
  }

  #end(): void {
    this.ended = true;
    this.#wake?.();
  }
}

function parseExit(frame: Frame): AgentExit {
  const view = checkLength(frame, 32);
  const flags = view.getUint32(0, true);
  const exitCode = view.getUint32(4, true);
  if ((flags & ~EXIT_FLAGS_ALL) !== 0 || exitCode > EXIT_CODE_MAX) throw unexpected(frame);
  return {
    exitCode,
    timedOut: (flags & ExitFlag.timedOut) !== 0,
    oomKilled: (flags & ExitFlag.oomKilled) !== 0,
    cpuTimeUs: view.getBigUint64(8, true),
    memoryPeakBytes: view.getBigUint64(16, true),
    wallUs: view.getBigUint64(24, true),
  };
}

/** The listing of a disk. What the reader has not taken yet is bounded by the window. */
export class IndexSession implements Session {
  readonly #window: ReceiveWindow;
  readonly #pending = new ByteBlocks();
  #outcome: { readonly error: Error | null } | null = null;
  #wake: (() => void) | null = null;

  constructor(grant: Grant) {
    this.#window = new ReceiveWindow((bytes) => grant(Stream.stdout, bytes));
  }

  onFrame(frame: Frame): boolean {
    if (frame.type === AgentFrame.output) {
      if (frame.payload.byteLength < 4 || viewOf(frame.payload).getUint32(0, true) !== Stream.stdout)
        throw unexpected(frame);
      const chunk = frame.payload.subarray(4);
      this.#window.receive(chunk.byteLength);
      this.#pending.push(chunk);
      this.#wake?.();
      return false;
    }
    if (frame.type === AgentFrame.done) checkLength(frame, 8);
    else if (frame.type !== AgentFrame.error) throw unexpected(frame);
    this.#finish(frame.type === AgentFrame.error ? parseError(frame) : null);
    return true;
  }

  fail(error: Error): void {
    this.#finish(error);
  }

  /** Chunks as they come. Who stops early must end the machine: the agent then waits for credit for ever. */
  async *chunks(): AsyncGenerator<Uint8Array> {
    for (;;) {
      for (let chunk = this.#pending.take(); chunk !== null; chunk = this.#pending.take()) {
        yield chunk;
        if (this.#outcome === null) this.#window.consume(chunk.byteLength);
      }
      if (this.#outcome?.error) throw this.#outcome.error;
      if (this.#outcome !== null) return;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  #finish(error: Error | null): void {
    this.#outcome ??= { error };
    this.#wake?.();
  }
}
