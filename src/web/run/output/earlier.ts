import { readEvents } from "../../../client/events.ts";
import { bytesOf } from "../../../client/operation-events.ts";
import type { OperationEvent, OutputEvent } from "../../../client/types.ts";
import { api } from "../../data/api.ts";
import { KEPT_CHARACTERS_MAX, OutputBuffer, type OutputLine } from "./output-buffer.ts";

/** A part of the output that is no longer among the newest lines. */
export interface Page {
  readonly lines: readonly OutputLine[];
  /** true: nothing comes before it */
  readonly isFirst: boolean;
}

/** Bounds of the number of events that are asked for at once: an event may have 96 KiB, or one character. */
const EVENTS_MIN = 16;
const EVENTS_MAX = 5000;

/** How many events have about as much output as is kept. */
export function eventsPerPage({
  events,
  characters,
}: {
  readonly events: number;
  readonly characters: number;
}): number {
  const each = Math.max(1, characters / Math.max(1, events));
  return Math.round(Math.min(EVENTS_MAX, Math.max(EVENTS_MIN, KEPT_CHARACTERS_MAX / 2 / each)));
}

/**
 * The output of the events that come before one, as much of it as is kept.
 * @param count number of events to read
 * @throws Problem, the reason of `signal`
 */
export async function pageBefore(
  {
    id,
    spid,
    event,
    count,
  }: { readonly id: string; readonly spid: number; readonly event: number; readonly count: number },
  signal: AbortSignal,
): Promise<Page> {
  // Events are numbered without a gap.
  const since = Math.max(-1, event - count - 1);
  const limit = event - 1 - since;
  if (limit <= 0) return { lines: [], isFirst: true };
  const path = `/operations/${encodeURIComponent(id)}/events`;
  const headers = { accept: "application/json" };
  const response = await api.call("GET", path, { query: { since, limit }, headers, signal });
  const buffer = new OutputBuffer();
  for (const found of (await response.json()) as OperationEvent[]) if (found.spid === spid) buffer.add(found);
  return { lines: buffer.lines(), isFirst: since === -1 && buffer.droppedCount === 0 };
}

/**
 * All of a stream that the appliance keeps, as it was written.
 * @throws ResponseError, UnreachableError
 */
export async function wholeStream(id: string, spid: number, stream: "stdout" | "stderr"): Promise<Blob> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const path = `/operations/${encodeURIComponent(id)}/events`;
  for await (const { event, data } of readEvents(api, path, { query: { spid } })) {
    if (event !== stream) continue;
    const { data: content } = JSON.parse(data) as OutputEvent;
    parts.push(bytesOf(content) as Uint8Array<ArrayBuffer>);
  }
  // Of no type that a browser would show.
  return new Blob(parts, { type: "application/octet-stream" });
}

/** Stores a blob on the machine of the browser. */
export function saveAs(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  // The browser has begun to read it by then.
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
