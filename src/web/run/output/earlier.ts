import { readEvents } from "../../../client/events.ts";
import { bytesOf } from "../../../client/operation-events.ts";
import type { OperationEvent, OutputEvent } from "../../../client/types.ts";
import { api } from "../../data/api.ts";
import { KEPT_CHARACTERS_MAX, linesBefore, OutputBuffer, type OutputLine } from "./output-buffer.ts";

/** A part of the output that is no longer among the newest lines. */
export interface Page {
  readonly lines: readonly OutputLine[];
  /** true: it begins with the first output */
  readonly isFirst: boolean;
}

/** Bounds of the number of events per request: an event may have 96 KiB, or one character. */
const EVENTS_MIN = 16;
const EVENTS_MAX = 5000;

/** Number of events with about as much output as a page. */
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

export interface PageOptions {
  /** of the operation or the sandbox */
  readonly path: string;
  readonly spid: number;
  /** the visible lines; the page ends before them */
  readonly visible: readonly OutputLine[];
  /** number of events to read at once */
  readonly count: number;
}

/**
 * One page of the output before the visible lines.
 * @throws ResponseError, UnreachableError, the reason of `signal`
 */
export async function pageBefore({ path, spid, visible, count }: PageOptions, signal: AbortSignal): Promise<Page> {
  const headers = { accept: "application/json" };
  // Events are numbered without a gap, but many of them may be of other processes.
  for (let last = visible[0]?.event ?? -1; last >= 0; ) {
    const since = Math.max(-1, last - count);
    const query = { since, limit: last - since };
    const response = await api.call("GET", `${path}/events`, { query, headers, signal });
    // One page for the visible lines, and one for the lines before them.
    const buffer = new OutputBuffer(2);
    for (const event of (await response.json()) as OperationEvent[]) if (event.spid === spid) buffer.add(event);
    const lines = linesBefore(buffer.lines(), visible);
    if (lines.length > 0) return { lines, isFirst: since === -1 && buffer.droppedCount === 0 };
    last = since;
  }
  return { lines: [], isFirst: true };
}

/**
 * The whole stored output of a stream, byte for byte.
 * @throws ResponseError, UnreachableError
 */
export async function wholeStream(path: string, spid: number, stream: "stdout" | "stderr"): Promise<Blob> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  for await (const { event, data } of readEvents(api, `${path}/events`, { query: { spid } })) {
    if (event !== stream) continue;
    const { data: content } = JSON.parse(data) as OutputEvent;
    parts.push(bytesOf(content) as Uint8Array<ArrayBuffer>);
  }
  // A type that no browser displays.
  return new Blob(parts, { type: "application/octet-stream" });
}

/** Downloads a blob. */
export function saveAs(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  // The download has started by then.
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
