import { dataFrame, FRAME, FrameError, frame, WINDOW_BYTES, windowFrame } from "./frames.ts";

/** A socket that keeps what it cannot send yet. */
export interface FrameSocket {
  write(bytes: Uint8Array): unknown;
}

/** Credit is granted in parts of the window, so that a slow reader causes few frames. */
const GRANT_BYTES = WINDOW_BYTES / 2;

/**
 * Sends the data of one direction as its credit allows, and holds the rest. The other side never stops reading its socket,
 * so it sees the end of a connection at once, however slow the readers of its data are.
 */
export class DataSender {
  readonly #socket: FrameSocket;
  readonly #events: { onRoom(): void; onEnded(): void };
  readonly #waiting: Uint8Array[] = [];
  #credit = WINDOW_BYTES;
  #isEnding = false;

  /** @param events `onRoom`: everything that had to wait is sent; `onEnded`: so is the end */
  constructor(socket: FrameSocket, events: { onRoom(): void; onEnded(): void }) {
    this.#socket = socket;
    this.#events = events;
  }

  /** Returns false when some of it has to wait. */
  send(bytes: Uint8Array): boolean {
    if (bytes.byteLength > 0) this.#waiting.push(bytes);
    this.#pump();
    return this.#waiting.length === 0;
  }

  /**
   * Keeps no more memory than the bytes that wait: the buffer that they came in may be much larger. The constructor copies at
   * once; `Uint8Array.from` takes byte by byte, which costs 150 ms a MB in a process without a compiler.
   */
  compact(): void {
    for (const [index, bytes] of this.#waiting.entries()) this.#waiting[index] = new Uint8Array(bytes);
  }

  /** Sends the end of the direction after everything that waits. */
  end(): void {
    this.#isEnding = true;
    if (this.#waiting.length === 0) this.#sendEnd();
  }

  /** The other side has read `bytes`. @throws FrameError for more than were sent */
  granted(bytes: number): void {
    this.#credit += bytes;
    if (bytes === 0 || this.#credit > WINDOW_BYTES)
      throw new FrameError("credit for nothing, or for more than was sent");
    if (this.#waiting.length === 0) return;
    this.#pump();
    if (this.#waiting.length > 0) return;
    if (this.#isEnding) this.#sendEnd();
    this.#events.onRoom();
  }

  #sendEnd(): void {
    this.#socket.write(frame(FRAME.end));
    this.#events.onEnded();
  }

  #pump(): void {
    for (let [next] = this.#waiting; next !== undefined && this.#credit > 0; [next] = this.#waiting) {
      const part = next.subarray(0, this.#credit);
      this.#credit -= part.byteLength;
      this.#socket.write(dataFrame(part));
      if (part.byteLength === next.byteLength) this.#waiting.shift();
      else this.#waiting[0] = next.subarray(part.byteLength);
    }
  }
}

/** Counts the data that have arrived in one direction, and grants credit for them again as they are read. */
export class DataReceiver {
  readonly #socket: FrameSocket;
  /** bytes that have arrived and were not granted again */
  #open = 0;
  /** of these, bytes that were read */
  #readBytes = 0;

  constructor(socket: FrameSocket) {
    this.#socket = socket;
  }

  /** @throws FrameError when the other side had no credit for them */
  arrived(bytes: number): void {
    this.#open += bytes;
    if (this.#open > WINDOW_BYTES) throw new FrameError("data without credit");
  }

  taken(bytes: number): void {
    this.#readBytes += bytes;
    if (this.#readBytes < GRANT_BYTES) return;
    this.#socket.write(windowFrame(this.#readBytes));
    this.#open -= this.#readBytes;
    this.#readBytes = 0;
  }
}
