import { CONTREE, type Contree } from "./contree.ts";

/** An event of the second dialect. */
export interface ContreeEvent {
  readonly id: number;
  readonly ts: string;
  readonly spid?: number;
  readonly type: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into any payload.
  readonly data: any;
}

/** The complete events in a part of a stream's text. The `id` and `event` of each frame must equal those of its data. */
export function parseContreeEvents(text: string): ContreeEvent[] {
  const frames = text
    .slice(0, text.lastIndexOf("\n\n") + 2)
    .split("\n\n")
    .filter((frame) => frame !== "" && !frame.startsWith(":"));
  return frames.map((frame) => {
    const [, id, type, data] = /^id: (\d+)\nevent: (\w+)\ndata: (.*)$/.exec(frame) ?? [];
    if (data === undefined) throw new Error(`no frame of an event: ${frame.slice(0, 300)}`);
    const event = JSON.parse(data) as ContreeEvent;
    if (event.id !== Number(id) || event.type !== type) throw new Error(`the frame of ${data} has other names`);
    return event;
  });
}

/** Opens a stream of events. */
export async function openEvents(
  { appliance }: Contree,
  id: string,
  {
    query = "",
    headers = {},
    signal = null,
  }: { query?: string; headers?: Record<string, string>; signal?: AbortSignal | null } = {},
): Promise<Response> {
  return await fetch(`${appliance.url}${CONTREE}/operations/${id}/events${query}`, {
    headers: { authorization: `Bearer ${appliance.token}`, ...headers },
    signal,
  });
}

/** All events that exist now, or, with `follow=1` in the query, all until the end. */
export async function contreeEvents(
  contree: Contree,
  id: string,
  query = "",
  headers: Record<string, string> = {},
): Promise<ContreeEvent[]> {
  const response = await openEvents(contree, id, { query, headers });
  if (response.status !== 200) throw new Error(`events answered ${response.status}: ${await response.text()}`);
  return parseContreeEvents(await response.text());
}

/**
 * Follows an operation until an event meets the condition, and returns all events up to it.
 * @throws Error when the stream ends before it
 */
export async function followUntil(
  contree: Contree,
  id: string,
  isWanted: (event: ContreeEvent) => boolean,
): Promise<ContreeEvent[]> {
  const leaving = new AbortController();
  using _leave = { [Symbol.dispose]: () => leaving.abort() };
  const { body } = await openEvents(contree, id, { query: "?follow=1", signal: leaving.signal });
  let text = "";
  for await (const chunk of body as ReadableStream<Uint8Array>) {
    text += Buffer.from(chunk).toString("latin1");
    const events = parseContreeEvents(text);
    const at = events.findIndex(isWanted);
    if (at >= 0) return events.slice(0, at + 1);
  }
  throw new Error(`the stream ended: ${text.slice(-500)}`);
}

/** The bytes of a part of a stream. */
export function bytesOfStream({ value, encoding }: { readonly value: string; readonly encoding: string }): Buffer {
  return Buffer.from(value, encoding === "base64" ? "base64" : "latin1");
}

/** The output of a process. */
export function outputOfEvents(events: readonly ContreeEvent[], spid: number, stream: "stdout" | "stderr"): Buffer {
  const own = events.filter((event) => event.spid === spid && event.type === stream);
  return Buffer.concat(own.map(({ data }) => bytesOfStream(data)));
}
