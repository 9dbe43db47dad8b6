import { AgentProtocolError } from "./errors.ts";
import { AgentFrame, FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX } from "./protocol.ts";

export interface Frame {
  readonly type: number;
  readonly session: number;
  /** valid until the next `push` to the decoder */
  readonly payload: Uint8Array;
}

const AGENT_FRAME_TYPES: ReadonlySet<number> = new Set(Object.values(AgentFrame));

/** Splits the agent's byte stream into frames. Every byte may be hostile; it keeps at most one frame in memory. */
export class FrameDecoder {
  readonly #types: ReadonlySet<number>;
  readonly #partial = new Uint8Array(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX);
  readonly #partialView = viewOf(this.#partial);
  #partialBytes = 0;

  /** @param types the frame types that the other side may send */
  constructor(types: ReadonlySet<number> = AGENT_FRAME_TYPES) {
    this.#types = types;
  }

  /** False while a part of a frame is kept. */
  get isBetweenFrames(): boolean {
    return this.#partialBytes === 0;
  }

  /**
   * Decodes the next bytes of the stream, and calls `take` with each complete frame, with `countMax` at most.
   * @returns the bytes that were not decoded, for the next call; empty after fewer frames than `countMax`
   * @throws AgentProtocolError for an invalid header; the decoder must not be used afterwards
   */
  push(chunk: Uint8Array, take: (frame: Frame) => void, countMax = Number.POSITIVE_INFINITY): Uint8Array {
    let count = this.#partialBytes > 0 ? 1 : 0;
    const bytes = this.#completePartial(chunk, take);
    const view = viewOf(bytes);
    let offset = 0;
    for (; count < countMax && bytes.byteLength - offset >= FRAME_HEADER_BYTES; count++) {
      const end = offset + FRAME_HEADER_BYTES + this.#payloadBytes(view, offset);
      if (bytes.byteLength < end) break;
      take(frameAt(view, offset, bytes.subarray(offset + FRAME_HEADER_BYTES, end)));
      offset = end;
    }
    const rest = bytes.subarray(offset);
    if (count === countMax) return rest;
    this.#keep(rest);
    return NOTHING;
  }

  /** Completes a frame that began in an earlier chunk. Returns the bytes after it. */
  #completePartial(chunk: Uint8Array, take: (frame: Frame) => void): Uint8Array {
    let rest = chunk;
    const view = this.#partialView;
    while (this.#partialBytes > 0) {
      const whole =
        this.#partialBytes < FRAME_HEADER_BYTES ? FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + this.#payloadBytes(view, 0);
      const part = rest.subarray(0, whole - this.#partialBytes);
      rest = rest.subarray(part.byteLength);
      this.#keep(part);
      if (this.#partialBytes < whole) return rest;
      if (whole === FRAME_HEADER_BYTES && this.#payloadBytes(view, 0) > 0) continue;
      this.#partialBytes = 0;
      take(frameAt(view, 0, this.#partial.subarray(FRAME_HEADER_BYTES, whole)));
    }
    return rest;
  }

  #keep(bytes: Uint8Array): void {
    this.#partial.set(bytes, this.#partialBytes);
    this.#partialBytes += bytes.byteLength;
  }

  /** Payload length in the header at `offset`. */
  #payloadBytes(view: DataView, offset: number): number {
    const length = view.getUint32(offset, true);
    const type = view.getUint16(offset + 4, true);
    if (length > FRAME_PAYLOAD_BYTES_MAX) throw new AgentProtocolError(`a frame of ${length} bytes`);
    if (!this.#types.has(type)) throw new AgentProtocolError(`a frame of unknown type ${type}`);
    if (view.getUint16(offset + 6, true) !== 0) throw new AgentProtocolError("a frame header with a non-zero reserve");
    return length;
  }
}

const NOTHING = new Uint8Array();

function frameAt(view: DataView, offset: number, payload: Uint8Array): Frame {
  return { type: view.getUint16(offset + 4, true), session: view.getUint32(offset + 8, true), payload };
}

export function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Encodes a frame; `parts` are joined to its payload. */
export function encodeFrame(type: number, session: number, ...parts: readonly Uint8Array[]): Uint8Array {
  const payloadBytes = parts.reduce((sum, part) => sum + part.byteLength, 0);
  if (payloadBytes > FRAME_PAYLOAD_BYTES_MAX) throw new Error(`a payload of ${payloadBytes} bytes fits no frame`);
  const bytes = new Uint8Array(FRAME_HEADER_BYTES + payloadBytes);
  const view = viewOf(bytes);
  view.setUint32(0, payloadBytes, true);
  view.setUint16(4, type, true);
  view.setUint32(8, session, true);
  let offset = FRAME_HEADER_BYTES;
  for (const part of parts) {
    bytes.set(part, offset);
    offset += part.byteLength;
  }
  return bytes;
}

/** Packs little-endian integers, each given as [bits, value]. */
export function packIntegers(...fields: readonly (readonly [16 | 32 | 64, number | bigint])[]): Uint8Array {
  const bytes = new Uint8Array(fields.reduce((sum, [bits]) => sum + bits / 8, 0));
  const view = viewOf(bytes);
  let offset = 0;
  for (const [bits, value] of fields) {
    if (bits === 16) view.setUint16(offset, Number(value), true);
    else if (bits === 32) view.setUint32(offset, Number(value), true);
    else view.setBigUint64(offset, BigInt(value), true);
    offset += bits / 8;
  }
  return bytes;
}

/** The bytes in parts of `sizeBytes`; the last one may be shorter. */
export function* split(bytes: Uint8Array, sizeBytes: number): Generator<Uint8Array> {
  for (let offset = 0; offset < bytes.byteLength; offset += sizeBytes) yield bytes.subarray(offset, offset + sizeBytes);
}
