import { ApiError } from "../../domain/errors.ts";
import type { LogEvent } from "../../domain/log-event.ts";
import type { Reply } from "../reply.ts";
import { followStream } from "../stream.ts";

/** Header of a client that goes on with a stream. */
export const LAST_EVENT_ID = "Last-Event-ID";
const ID_PATTERN = /^\d{1,15}$/;

/** A comment in a stream without events, so that proxies and clients with a time limit keep it open. */
const KEEPALIVE = new TextEncoder().encode(": keepalive\n\n");

/** The id of the last event that the client has seen; null when there is none. @throws ApiError `validation_error` */
export function lastEventId({ headers }: Request): number | null {
  const header = headers.get(LAST_EVENT_ID);
  if (header === null || header === "") return null;
  if (ID_PATTERN.test(header)) return Number(header);
  throw new ApiError("validation_error", `${LAST_EVENT_ID} must be the id of an event`, { field: LAST_EVENT_ID });
}

/** Frames of events for one client, in their order. */
export interface FrameSource {
  /** The next frames; null at the end. A pending call must settle when `left` aborts. */
  next(): Promise<Uint8Array<ArrayBuffer> | null>;
  /** disposed when the stream is over; it may be disposed of twice */
  readonly held: Disposable;
  /** aborted when the client disconnects */
  readonly left: AbortController;
  /** a comment is sent when nothing else was sent for so long */
  readonly idleMs: number;
}

/** Streams frames of events. A failure after the client has left ends the stream. */
export function eventStream({ next, held, left, idleMs }: FrameSource): Reply {
  const nextUntilLeft = async (): Promise<Uint8Array<ArrayBuffer> | null> => {
    try {
      return await next();
    } catch (error) {
      if (left.signal.aborted) return null;
      throw error;
    }
  };
  const idle = { chunk: KEEPALIVE, afterMs: idleMs };
  const body = followStream(nextUntilLeft, { idle, held, onCancel: () => left.abort() });
  const headers = { "content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no" };
  return { status: 200, headers, body };
}

/** Encodes events; the followers of one log share what is encoded. */
export class SharedFrames {
  readonly #encode: (events: readonly LogEvent[]) => Uint8Array<ArrayBuffer>;
  readonly #framesOf = new WeakMap<readonly LogEvent[], Uint8Array<ArrayBuffer>>();

  constructor(encode: (events: readonly LogEvent[]) => Uint8Array<ArrayBuffer>) {
    this.#encode = encode;
  }

  /** The frames of an array of events. */
  of(events: readonly LogEvent[]): Uint8Array<ArrayBuffer> {
    const known = this.#framesOf.get(events);
    if (known !== undefined) return known;
    const frames = this.#encode(events);
    this.#framesOf.set(events, frames);
    return frames;
  }
}
