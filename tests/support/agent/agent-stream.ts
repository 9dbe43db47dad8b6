import type { Socket } from "node:net";
import {
  AgentFrame,
  FRAME_HEADER_BYTES,
  FRAME_PAYLOAD_BYTES_MAX,
  HostFrame,
  PROTOCOL_VERSION,
  SYNC_ENTROPY_BYTES,
} from "../../../src/vm/agent/protocol.ts";
import { deadline, pause } from "../waiting.ts";

const FRAME_TIMEOUT_MS = 20_000;

export interface Frame {
  readonly type: number;
  readonly session: number;
  readonly payload: Buffer;
}

export function u16(value: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16LE(value);
  return bytes;
}

export function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

export function u64(value: bigint | number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
}

export function frame(type: number, session: number, ...payload: readonly Uint8Array[]): Buffer {
  const bytes = Buffer.concat(payload);
  return Buffer.concat([u32(bytes.length), u16(type), u16(0), u32(session), bytes]);
}

export function syncFrame(nonce = 1n): Buffer {
  const now = BigInt(Date.now()) * 1_000_000n;
  return frame(
    HostFrame.sync,
    0,
    u32(PROTOCOL_VERSION),
    u32(0),
    u64(nonce),
    u64(now),
    Buffer.alloc(SYNC_ENTROPY_BYTES, 7),
  );
}

/** The host's end of a stream to the agent, in bare frames. */
export class AgentStream {
  readonly #socket: Socket;
  #received = Buffer.alloc(0);
  #closed = false;
  #wake: (() => void) | null = null;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("data", (chunk: Buffer) => {
      this.#received = Buffer.concat([this.#received, chunk]);
      this.#wake?.();
    });
    const close = () => {
      this.#closed = true;
      this.#wake?.();
    };
    socket.on("close", close);
    // EPIPE and ECONNRESET: the agent refused its input, which its exit status shows.
    socket.on("error", close);
  }

  send(...bytes: readonly Uint8Array[]): void {
    if (!this.#closed) this.#socket.write(Buffer.concat(bytes));
  }

  /** Sends, and waits until the kernel has accepted the bytes. */
  async flush(bytes: Uint8Array): Promise<void> {
    await new Promise<void>((done) => this.#socket.write(bytes, () => done()));
  }

  /** Stops reading frames of the agent. */
  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** The next frame that is not a log line. @throws Error when none arrives in time, or the stream is closed */
  async next(): Promise<Frame> {
    for (;;) {
      const frame = this.#take();
      if (frame !== null && frame.type !== AgentFrame.log) return frame;
      if (frame !== null) continue;
      if (this.#closed) throw new Error("the agent closed the stream");
      await this.#change();
    }
  }

  /** A frame that has already arrived, or null. */
  poll(): Frame | null {
    return this.#take();
  }

  /** True once the agent's end of the stream is closed. */
  get closed(): boolean {
    return this.#closed;
  }

  /** Sends a SYNC and returns the next answer, before which the agent has handled every earlier frame. */
  async sync(): Promise<Frame> {
    this.send(syncFrame());
    return await this.next();
  }

  /** True when no frame arrives for that long. */
  async quiet(milliseconds: number): Promise<boolean> {
    await pause("a frame would come", milliseconds);
    return this.#take() === null;
  }

  #take(): Frame | null {
    const bytes = this.#received;
    if (bytes.length < FRAME_HEADER_BYTES || bytes.length < FRAME_HEADER_BYTES + bytes.readUInt32LE(0)) return null;
    const end = FRAME_HEADER_BYTES + bytes.readUInt32LE(0);
    this.#received = bytes.subarray(end);
    const isType = (Object.values(AgentFrame) as number[]).includes(bytes.readUInt16LE(4));
    if (!isType || bytes.readUInt16LE(6) !== 0 || end > FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX) {
      throw new Error(`a malformed frame of the agent: ${bytes.subarray(0, 64).toString("hex")}`);
    }
    return { type: bytes.readUInt16LE(4), session: bytes.readUInt32LE(8), payload: bytes.subarray(12, end) };
  }

  async #change(): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    this.#wake = resolve;
    using _late = deadline(FRAME_TIMEOUT_MS, () => reject(new Error("no frame arrived in time")));
    await promise;
    this.#wake = null;
  }

  /** Stops reading from the agent until the disposal. */
  stall(): Disposable {
    this.#socket.pause();
    return { [Symbol.dispose]: () => void this.#socket.resume() };
  }

  /** Closes the stream at once. What was not read is lost. */
  cut(): void {
    this.#socket.destroy();
  }
}
