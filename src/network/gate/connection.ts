import { ByteBlocks } from "../../domain/bytes/byte-blocks.ts";
import { withinTime } from "../../system/waiting.ts";
import { type GateConnection, type GateEnd, GateError } from "../gate.ts";
import { DataReceiver, DataSender } from "./flow.ts";
import { FrameReader, messageFrame, resetFrame } from "./frames.ts";
import { GateSocket } from "./gate-socket.ts";
import { ANSWER_BYTES_MAX, parseAnswer, type Request } from "./messages.ts";

/** The process ended before it gave an answer. */
export class GateGoneError extends GateError {
  constructor() {
    super("unreachable", "the connecting process has ended");
  }
}

/**
 * Sends a request to the process and waits for its answer; the process has time limits of its own.
 * @returns the connection and the addresses of the answer
 * @throws GateGoneError; GateError; the signal's reason
 */
export async function request(
  path: string,
  message: Request,
  options: { readonly limitMs: number; readonly signal: AbortSignal },
): Promise<{ readonly connection: Connection; readonly addresses: readonly string[] }> {
  const { limitMs, signal } = options;
  signal.throwIfAborted();
  const connection = new Connection(path, messageFrame(message));
  const onAbort = (): void => connection.reset();
  signal.addEventListener("abort", onAbort);
  using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
  try {
    const addresses = await withinTime(connection.answer, limitMs, () => {
      throw new GateError("timed_out", "the connecting process does not answer");
    });
    return { connection, addresses };
  } catch (error) {
    connection.reset();
    signal.throwIfAborted();
    throw error;
  }
}

/** The daemon's side of a connection. The bytes that arrive may be hostile, and are only passed on. */
export class Connection implements GateConnection {
  readonly answer: Promise<readonly string[]>;
  readonly ended: Promise<GateEnd>;
  address = "";
  isProxied = false;
  readonly #socket: GateSocket;
  readonly #answered = Promise.withResolvers<readonly string[]>();
  readonly #over = Promise.withResolvers<GateEnd>();
  #hasAnswer = false;
  readonly #sender: DataSender;
  readonly #receiver: DataReceiver;
  /** bytes that wait for the reader: at most a window, however small the frames are */
  readonly #unread = new ByteBlocks();
  #isEnding = false;
  #wake: (() => void) | null = null;
  /** which directions have ended, and whether everything has */
  readonly #done = { here: false, there: false, all: false };
  /** writers that wait for credit */
  #room: PromiseWithResolvers<void> | null = null;

  /** @param path socket of the process */
  constructor(path: string, request: Uint8Array) {
    const socket = new GateSocket(path, {
      data: (bytes) => {
        if (this.#done.all) return;
        try {
          reader.push(bytes);
        } catch {
          // The process broke the framing, so its further bytes are ignored.
          this.#end("lost");
        }
      },
      // The process ends the socket when the other side has read everything.
      close: () => this.#end(this.#done.here && this.#done.there ? "ended" : "lost"),
    });
    this.#socket = socket;
    this.answer = this.#answered.promise;
    this.ended = this.#over.promise;
    // The caller handles the error where it waits; after an abort there is no handler.
    this.answer.catch(() => undefined);
    this.#receiver = new DataReceiver(socket);
    const onEnded = (): void => {
      this.#done.here = true;
    };
    this.#sender = new DataSender(socket, { onRoom: () => this.#giveRoom(), onEnded });
    const reader = new FrameReader(ANSWER_BYTES_MAX, {
      message: (payload) => this.#takeAnswer(payload),
      data: (bytes) => this.#take(bytes),
      end: () => {
        if (!this.#hasAnswer || this.#done.there) throw new Error("an end out of place");
        this.#done.there = true;
        this.#wake?.();
      },
      reset: (reason) => this.#end(reason),
      window: (bytes) => this.#sender.granted(bytes),
    });
    socket.write(request);
  }

  async *chunks(): AsyncGenerator<Uint8Array> {
    for (;;) {
      const chunk = this.#unread.take();
      if (chunk !== null) {
        yield chunk;
        if (!this.#done.all) this.#receiver.taken(chunk.byteLength);
        continue;
      }
      if (this.#done.there || this.#done.all) return;
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#wake = resolve;
      await promise;
      this.#wake = null;
    }
  }

  async write(bytes: Uint8Array): Promise<void> {
    if (this.#done.all || this.#isEnding || this.#sender.send(bytes)) return;
    this.#room ??= Promise.withResolvers<void>();
    await this.#room.promise;
  }

  end(): void {
    if (this.#done.all || this.#isEnding) return;
    this.#isEnding = true;
    this.#sender.end();
  }

  reset(): void {
    if (!this.#done.all) this.#socket.write(resetFrame("reset"));
    this.#end("reset");
  }

  #takeAnswer(payload: Uint8Array): void {
    if (this.#hasAnswer) throw new Error("a second answer");
    this.#hasAnswer = true;
    try {
      const addresses = parseAnswer(payload);
      this.address = addresses[0] ?? "";
      this.#answered.resolve(addresses);
    } catch (error) {
      this.#answered.reject(error);
    }
  }

  #take(bytes: Uint8Array): void {
    if (!this.#hasAnswer || this.#done.there) throw new Error("data out of place");
    this.#receiver.arrived(bytes.byteLength);
    this.#unread.push(bytes);
    this.#wake?.();
  }

  #giveRoom(): void {
    this.#room?.resolve();
    this.#room = null;
  }

  #end(how: GateEnd): void {
    if (this.#done.all) return;
    this.#done.all = true;
    this.#answered.reject(new GateGoneError());
    this.#over.resolve(how);
    this.#giveRoom();
    this.#wake?.();
    this.#socket.end();
  }
}
