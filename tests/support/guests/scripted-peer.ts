import { encodeFrame, type Frame, FrameDecoder } from "../../../src/vm/agent/frames.ts";
import { HostFrame } from "../../../src/vm/agent/protocol.ts";
import type { ByteChannel } from "../../../src/vm/vmm.ts";

const UNREAD_BYTES_MAX = 1_048_576;

/** A byte channel in memory: written bytes go to `onWrite`, and chunks of `deliver` are read. */
export class MemoryChannel implements ByteChannel {
  onWrite: (bytes: Uint8Array) => void = () => undefined;
  paused = false;
  #handler: ((chunk: Uint8Array | null) => void) | null = null;
  readonly #waiting: (Uint8Array | null)[] = [];
  #closed = false;

  async write(bytes: Uint8Array): Promise<void> {
    if (this.#closed) throw new Error("closed");
    this.onWrite(bytes.slice());
  }

  onData(handler: (chunk: Uint8Array | null) => void): void {
    this.#handler = handler;
    this.#flow();
  }

  pause(): void {
    this.paused = true;
  }

  resume(): void {
    this.paused = false;
    this.#flow();
  }

  /** Sends a chunk to the reader. While it pauses, a sender could send at most 1 MiB: the rest is dropped. */
  deliver(chunk: Uint8Array | null): void {
    if (chunk === null) this.#closed = true;
    const waitingBytes = this.#waiting.reduce((sum, waiting) => sum + (waiting?.byteLength ?? 0), 0);
    if (waitingBytes < UNREAD_BYTES_MAX || chunk === null) this.#waiting.push(chunk);
    this.#flow();
  }

  #flow(): void {
    while (this.#handler !== null && !this.paused && this.#waiting.length > 0) {
      this.#handler(this.#waiting.shift() ?? null);
    }
  }
}

/** The guest's side of a channel: stores the host's frames and sends those of the test. */
export class ScriptedAgent {
  readonly channel = new MemoryChannel();
  readonly frames: { type: number; session: number; payload: Buffer }[] = [];
  #decoder = new FrameDecoder(new Set(Object.values(HostFrame)));
  #arrived: (() => void)[] = [];

  constructor() {
    this.channel.onWrite = (bytes) => {
      this.#decoder.push(bytes, ({ type, session, payload }: Frame) =>
        this.frames.push({ type, session, payload: Buffer.from(payload) }),
      );
      for (const wake of this.#arrived.splice(0)) wake();
    };
  }

  send(type: number, session: number, ...payload: Uint8Array[]): void {
    this.channel.deliver(encodeFrame(type, session, ...payload));
  }

  /** The `index`-th frame of a type that the host sent, once it has arrived. */
  async frame(type: number, index = 0): Promise<{ type: number; session: number; payload: Buffer }> {
    for (;;) {
      const frame = this.frames.filter((each) => each.type === type)[index];
      if (frame !== undefined) return frame;
      await new Promise<void>((resolve) => this.#arrived.push(resolve));
    }
  }
}
