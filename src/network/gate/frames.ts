/**
 * The frames between the daemon and the process that connects: one byte of kind, three bytes of length, big-endian, and the
 * payload. A socket carries one connection. Sockets of one machine cannot tell a reset from an end, hence the frames.
 */
export const FRAME = { message: 1, data: 2, end: 3, reset: 4, window: 5 } as const;
export type FrameKind = (typeof FRAME)[keyof typeof FRAME];

const HEADER_BYTES = 4;
/**
 * Limit of data under way in one direction, and so the longest payload of a data frame. The reader grants the bytes again
 * when it has read them.
 */
export const WINDOW_BYTES = 131_072;
/** Reasons of a reset, in the order of their numbers. */
export const RESET_REASONS = ["reset", "denied_sni", "idle"] as const;
export type ResetReason = (typeof RESET_REASONS)[number];

/** The peer broke the rules of the frames. */
export class FrameError extends Error {
  override readonly name = "FrameError";
}

export interface FrameHandler {
  /** called with a whole message */
  message(payload: Uint8Array): void;
  /** called with the bytes of data frames, in pieces as they arrive */
  data(bytes: Uint8Array): void;
  end(): void;
  reset(reason: ResetReason): void;
  /** called with the number of bytes that the reader has read */
  window(bytes: number): void;
}

/** Decodes frames. Keeps at most an incomplete message, a reason or a header. */
export class FrameReader {
  readonly #handler: FrameHandler;
  readonly #messageBytesMax: number;
  #kept: Uint8Array = new Uint8Array(0);
  /** bytes of the present data frame that have not arrived */
  #dataLeft = 0;

  /** @param messageBytesMax longest message that is accepted */
  constructor(messageBytesMax: number, handler: FrameHandler) {
    this.#messageBytesMax = messageBytesMax;
    this.#handler = handler;
  }

  /** @throws FrameError when the bytes are not valid frames; nothing may be pushed afterwards */
  push(bytes: Uint8Array): void {
    let rest = this.#kept.byteLength === 0 ? bytes : Buffer.concat([this.#kept, bytes]);
    this.#kept = new Uint8Array(0);
    while (rest.byteLength > 0) {
      const next = this.#dataLeft > 0 ? this.#passData(rest) : this.#takeFrame(rest);
      if (next === null) {
        // A copy, because the buffer of a socket is much larger.
        this.#kept = new Uint8Array(rest);
        return;
      }
      rest = next;
    }
  }

  #passData(bytes: Uint8Array): Uint8Array {
    const length = Math.min(this.#dataLeft, bytes.byteLength);
    this.#dataLeft -= length;
    this.#handler.data(bytes.subarray(0, length));
    return bytes.subarray(length);
  }

  /** Returns the bytes after the frame; null when it is incomplete. */
  #takeFrame(bytes: Uint8Array): Uint8Array | null {
    if (bytes.byteLength < HEADER_BYTES) return null;
    const [kind = 0, high = 0, middle = 0, low = 0] = bytes;
    const length = (high << 16) | (middle << 8) | low;
    checkFrame(kind, length, this.#messageBytesMax);
    const after = bytes.subarray(HEADER_BYTES);
    if (kind === FRAME.data) {
      this.#dataLeft = length;
      return after;
    }
    if (after.byteLength < length) return null;
    const payload = after.subarray(0, length);
    if (kind === FRAME.message) this.#handler.message(payload);
    else if (kind === FRAME.end) this.#handler.end();
    else if (kind === FRAME.window) this.#handler.window(Buffer.from(payload).readUInt32BE());
    else this.#handler.reset(RESET_REASONS[payload[0] ?? 0] ?? "reset");
    return after.subarray(length);
  }
}

function checkFrame(kind: number, length: number, messageBytesMax: number): void {
  const fits =
    (kind === FRAME.message && length <= messageBytesMax) ||
    (kind === FRAME.data && length > 0 && length <= WINDOW_BYTES) ||
    (kind === FRAME.end && length === 0) ||
    (kind === FRAME.reset && length === 1) ||
    (kind === FRAME.window && length === 4);
  if (!fits) throw new FrameError(`a frame of kind ${kind} has ${length} bytes`);
}

/** A frame that is not data. */
export function frame(kind: Exclude<FrameKind, 2>, payload: Uint8Array = new Uint8Array(0)): Uint8Array {
  return Buffer.concat([header(kind, payload.byteLength), payload]);
}

export function messageFrame(message: unknown): Uint8Array {
  return frame(FRAME.message, Buffer.from(JSON.stringify(message)));
}

export function resetFrame(reason: ResetReason): Uint8Array {
  return frame(FRAME.reset, Uint8Array.of(RESET_REASONS.indexOf(reason)));
}

export function windowFrame(bytes: number): Uint8Array {
  const payload = Buffer.alloc(4);
  payload.writeUInt32BE(bytes);
  return frame(FRAME.window, payload);
}

/** A data frame. @param bytes at least one, at most WINDOW_BYTES */
export function dataFrame(bytes: Uint8Array): Uint8Array {
  return Buffer.concat([header(FRAME.data, bytes.byteLength), bytes]);
}

function header(kind: number, length: number): Uint8Array {
  return Uint8Array.of(kind, length >> 16, (length >> 8) & 0xff, length & 0xff);
}
