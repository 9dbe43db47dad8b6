import { given } from "../domain/given.ts";
import { fromBase64 } from "./base64.ts";
import type { Client } from "./client.ts";
import { ResponseError, UnreachableError } from "./errors.ts";
import { readEvents } from "./events.ts";
import { pause } from "./pause.ts";
import { COMMAND_SPID } from "./processes.ts";
import type { OperationEvent, OutputEvent } from "./types.ts";

/** Longest time until a restarting appliance answers again, even on a busy host, in `milliseconds`. */
export const UNREACHABLE_MS_MAX = 60_000;
export const RETRY_MS = 500;

export interface OperationEventsOptions {
  /** true: until the operation has ended; false: only the events so far */
  readonly follow: boolean;
  /** only those of one process, and the completion */
  readonly spid?: number;
  /** id of the event after which to begin; absent: from the beginning */
  readonly after?: number;
  readonly signal?: AbortSignal;
}

/** The path of an operation, whose events are below it. */
export const pathOfOperation = (id: string): string => `/operations/${encodeURIComponent(id)}`;

/** The events of an operation. @throws as `eventsBelow` */
export function operationEvents(
  client: Client,
  id: string,
  options: OperationEventsOptions,
): AsyncGenerator<OperationEvent, void, undefined> {
  return eventsBelow(client, pathOfOperation(id), options);
}

/**
 * The events of what is at a path below /v1, an operation or a sandbox, on arrival. After a lost connection or a restart of
 * the appliance, it continues at the same position.
 * @throws ResponseError, UnreachableError, AnswerError, the reason of `signal`
 */
export async function* eventsBelow(
  client: Client,
  parent: string,
  { follow, spid, after, signal }: OperationEventsOptions,
): AsyncGenerator<OperationEvent, void, undefined> {
  const path = `${parent}/events`;
  const options = { query: { follow, spid }, ...given({ signal }) };
  let lastEventId = after === undefined ? undefined : String(after);
  for (let unreachableSince: number | null = null; ; ) {
    try {
      const resume = given({ lastEventId });
      for await (const { data, id: eventId } of readEvents(client, path, { ...options, ...resume })) {
        const event = JSON.parse(data) as OperationEvent;
        yield event;
        lastEventId = eventId ?? lastEventId;
        unreachableSince = null;
        if (isLastEvent(event)) return;
      }
      if (!follow) return;
    } catch (error) {
      if (!(error instanceof UnreachableError)) throw error;
      unreachableSince ??= performance.now();
      if (performance.now() - unreachableSince > UNREACHABLE_MS_MAX) throw error;
    }
    await pause(RETRY_MS, signal);
  }
}

/** True for the event after which a log has no other one. */
export function isLastEvent({ type, data }: { readonly type: string; readonly data: object }): boolean {
  return type === "completion" || (type === "state" && "to" in data && data.to === "ended");
}

/**
 * Waits until the command of an instance begins, and returns its start, in `milliseconds` since the epoch; null when the
 * instance has ended without it.
 * @throws as `operationEvents`
 */
export async function commandStart(client: Client, id: string, signal?: AbortSignal): Promise<number | null> {
  const options = { follow: true, spid: COMMAND_SPID, ...given({ signal }) };
  for await (const { type, time } of operationEvents(client, id, options)) {
    if (type === "spawn") return Date.parse(time);
  }
  return null;
}

/** The bytes of an output. */
export function outputOf({ data }: OutputEvent): Uint8Array {
  return bytesOf(data);
}

/** The bytes of an output or a part of one, as the interface writes them. */
export function bytesOf({ content, encoding }: OutputEvent["data"]): Uint8Array {
  return encoding === "base64" ? fromBase64(content) : new TextEncoder().encode(content);
}

/**
 * Sends a request that needs a running command. An operation is EXECUTING a moment before its command has started, so a
 * refused request is repeated once after the start.
 * @throws ResponseError, UnreachableError
 */
export async function onceStarted<T>(client: Client, id: string, request: () => Promise<T>): Promise<T> {
  try {
    return await request();
  } catch (error) {
    const isEarly = error instanceof ResponseError && error.status === 409 && (await commandStart(client, id)) !== null;
    if (!isEarly) throw error;
  }
  return await request();
}
