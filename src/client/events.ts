import { type EventSourceMessage, EventSourceParserStream } from "eventsource-parser/stream";
import type { CallOptions, Client } from "./client.ts";
import { chunksOf } from "./connections/chunks.ts";
import { AnswerError, UnreachableError } from "./errors.ts";

/** Longest accepted event: output of a command, and answers to an agent, are far shorter. */
const EVENT_CHARACTERS_MAX = 16_777_216;

export interface EventOptions extends Pick<CallOptions, "query" | "rawQuery" | "signal"> {
  /** id of the last event that was seen, after which the stream begins */
  readonly lastEventId?: string;
}

/**
 * The events of a route below /v1 that answers with `text/event-stream`, on arrival; comments are skipped. The
 * connection is closed when the caller leaves the loop.
 * @throws ResponseError, AnswerError, UnreachableError if the connection breaks, the reason of `signal`
 */
export async function* readEvents(
  client: Client,
  path: string,
  { lastEventId, ...options }: EventOptions = {},
): AsyncGenerator<EventSourceMessage, void> {
  const headers: Record<string, string> = { accept: "text/event-stream" };
  if (lastEventId !== undefined) headers["last-event-id"] = lastEventId;
  const response = await client.call("GET", path, { ...options, headers, deadline: false });
  const type = response.headers.get("content-type");
  if (type?.startsWith("text/event-stream") !== true || response.body === null) {
    await response.body?.cancel();
    throw new AnswerError(`${path} has no events: its content type is ${type}`);
  }
  yield* eventsOf(response.body, (error) =>
    options.signal?.aborted
      ? options.signal.reason
      : new UnreachableError(`the events of ${path} broke off: ${error.message}`, { cause: error }),
  );
}

/**
 * The events of a body, on arrival; comments are skipped. The body is cancelled when the caller leaves the loop.
 * @param failure returns the error to throw when the body breaks off
 */
export async function* eventsOf(
  body: ReadableStream<Uint8Array<ArrayBuffer>>,
  failure: (error: Error) => unknown,
): AsyncGenerator<EventSourceMessage, void> {
  const events = body
    .pipeThrough(new TextDecoderStream())
    .pipeThrough(new EventSourceParserStream({ maxBufferSize: EVENT_CHARACTERS_MAX }));
  yield* chunksOf(events, failure);
}
