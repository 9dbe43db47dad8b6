import { connect, type Socket } from "node:net";
import type { LogEventType } from "../../src/domain/log-event.ts";
import type { Appliance } from "./appliance/appliance.ts";

/** An event on the wire. */
export interface WireEvent {
  readonly id: number;
  readonly time: string;
  readonly spid?: number;
  readonly type: LogEventType;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into any payload.
  readonly data: any;
}

/** The complete events in a part of a stream's text. */
export function parseEvents(text: string): WireEvent[] {
  const whole = text.slice(0, text.lastIndexOf("\n\n") + 2);
  return whole
    .split("\n\n")
    .filter((part) => part !== "" && !part.startsWith(":"))
    .map((part) => JSON.parse(part.slice(part.indexOf("\ndata: ") + 7)));
}

/** All events that exist now, as an array. */
export async function eventsOf(appliance: Appliance, id: string, query = ""): Promise<WireEvent[]> {
  const headers = { accept: "application/json" };
  return (await (await appliance.fetch(`/operations/${id}/events${query}`, { headers })).json()) as WireEvent[];
}

/** The output of a process on a stream. */
export function outputOf(events: readonly WireEvent[], spid: number, stream: "stdout" | "stderr"): Buffer {
  const own = events.filter((event) => event.spid === spid && event.type === stream);
  return Buffer.concat(
    own.map(({ data }) => Buffer.from(data.content, data.encoding === "base64" ? "base64" : "latin1")),
  );
}

/** Follows an operation, and stores its position, so that it can continue after a cut. */
export class EventFollower {
  readonly events: WireEvent[] = [];
  readonly #appliance: Appliance;
  readonly #id: string;
  cutsCount = 0;

  constructor(appliance: Appliance, id: string) {
    this.#appliance = appliance;
    this.#id = id;
  }

  get isComplete(): boolean {
    return this.events.at(-1)?.type === "completion";
  }

  /**
   * Follows from the last complete event to the end, or until it has `bytesMax` of the answer: the bytes behind the last
   * complete event are dropped, wherever the cut is. Other ends of the connection are not failures.
   */
  async follow(bytesMax = Number.POSITIVE_INFINITY): Promise<void> {
    const leaving = new AbortController();
    const last = this.events.at(-1);
    let text = "";
    try {
      const response = await this.#appliance.fetch(`/operations/${this.#id}/events?follow=true`, {
        headers: last === undefined ? {} : { "last-event-id": String(last.id) },
        signal: leaving.signal,
      });
      for await (const chunk of response.body as ReadableStream<Uint8Array>) {
        text += Buffer.from(chunk).toString("latin1");
        if (text.length >= bytesMax) break;
      }
    } catch (error) {
      if (!(error instanceof Error)) throw error;
    }
    leaving.abort();
    this.cutsCount++;
    this.events.push(...parseEvents(text.slice(0, bytesMax)));
  }
}

/** A client that requests the events of an operation and never reads the answer. */
export function neverReads(appliance: Appliance, id: string): Socket {
  const { hostname, port } = new URL(appliance.url);
  const socket = connect(Number(port), hostname);
  socket.on("error", () => undefined);
  socket.pause();
  const head = `GET /v1/operations/${id}/events?follow=true HTTP/1.1\r\nHost: ${hostname}\r\n`;
  socket.write(`${head}Authorization: Bearer ${appliance.token}\r\n\r\n`);
  return socket;
}
