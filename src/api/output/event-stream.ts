import { ApiError } from "../../domain/errors.ts";
import type { Reply } from "../reply.ts";
import { type Followed, followStream } from "../stream/follow.ts";
import { watchCredential } from "./credential-watch.ts";

/** Header of a client that continues a stream. */
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

/** The events for one client. */
export interface FrameSource<Event> {
  /** disposed when the stream is over */
  readonly events: Pick<Followed<readonly Event[]>, "next"> & Disposable;
  /** Frames of events, in memory that is not reused; may be empty. */
  readonly frames: (events: readonly Event[]) => Uint8Array<ArrayBuffer>;
  /** The last frames after a failure. Absent: the stream is aborted. */
  readonly failure?: (error: unknown) => Uint8Array<ArrayBuffer>;
  /** aborted when the client disconnects; it must end a wait for events */
  readonly left: AbortController;
  /** whether the client may still read; must not reject */
  readonly isAllowed: () => Promise<boolean>;
  /** a comment is sent after this time without other bytes */
  readonly idleMs: number;
}

/** Streams frames of events. It ends when the client has left, and soon after its credential has ended. */
export function eventStream<Event>(source: FrameSource<Event>): Reply {
  const { events, frames, failure, left, isAllowed, idleMs } = source;
  const failed = (error: unknown) => {
    if (left.signal.aborted) return null;
    if (failure === undefined) throw error;
    return failure(error);
  };
  const followed = { next: () => events.next(), encode: frames, failed };
  const idle = { chunk: KEEPALIVE, afterMs: idleMs };
  const held = new DisposableStack();
  held.use(events);
  held.use(watchCredential(left, isAllowed));
  const body = followStream(followed, { idle, held, onCancel: () => left.abort() });
  const headers = { "content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no" };
  return { status: 200, headers, body };
}

/** Encodes events once for all followers of a log. */
export class SharedFrames<Event> {
  readonly #encode: (events: readonly Event[]) => Uint8Array<ArrayBuffer>;
  readonly #framesOf = new WeakMap<readonly Event[], Uint8Array<ArrayBuffer>>();

  constructor(encode: (events: readonly Event[]) => Uint8Array<ArrayBuffer>) {
    this.#encode = encode;
  }

  /** The frames of an array of events. */
  of(events: readonly Event[]): Uint8Array<ArrayBuffer> {
    const cached = this.#framesOf.get(events);
    if (cached !== undefined) return cached;
    const frames = this.#encode(events);
    this.#framesOf.set(events, frames);
    return frames;
  }
}
