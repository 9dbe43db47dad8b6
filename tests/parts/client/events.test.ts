import { afterEach, beforeEach, expect, test } from "bun:test";
import { Client } from "../../../src/client/client.ts";
import { AnswerError, ResponseError, UnreachableError } from "../../../src/client/errors.ts";
import { readEvents } from "../../../src/client/events.ts";
import { errorReply, ScriptedAppliance } from "../../support/cli/cli.ts";
import { failureOf } from "../../support/failures.ts";

let appliance: ScriptedAppliance;
let client: Client;
beforeEach(() => {
  appliance = new ScriptedAppliance();
  client = new Client({ url: appliance.environment["COPPICE_URL"] ?? "", token: "t" });
});
afterEach(() => appliance[Symbol.asyncDispose]());

/** An answer that consists of these pieces, and then ends as `end` says. */
function sends(pieces: readonly string[], end: "close" | "stay" = "close"): { readonly cancelled: Promise<void> } {
  const { promise, resolve } = Promise.withResolvers<void>();
  const left = [...pieces];
  appliance.answer = () => {
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        const piece = left.shift();
        if (piece !== undefined) controller.enqueue(Buffer.from(piece, "latin1"));
        else if (end === "close") controller.close();
        else return new Promise(() => undefined);
        return undefined;
      },
      cancel: () => resolve(),
    });
    return new Response(body, { headers: { "content-type": "text/event-stream; charset=utf-8" } });
  };
  return { cancelled: promise };
}

test("events are decoded whole, wherever the stream is cut", async () => {
  const text = Buffer.from(': hello\n\nid: 1\nevent: stdout\ndata: {"content":"é"}\n\nid: 2\ndata: a\ndata: b\n\n');
  sends([...text].map((byte) => String.fromCharCode(byte)));
  const events = await Array.fromAsync(readEvents(client, "/operations/x/events"));
  expect(events).toMatchObject([
    { id: "1", event: "stdout", data: '{"content":"é"}' },
    { id: "2", data: "a\nb" },
  ]);
});

test("an event without an end is not buffered without limit", async () => {
  const piece = "a".repeat(4_194_304);
  sends(["data: ", piece, piece, piece, piece, piece], "stay");
  expect(await failureOf(Array.fromAsync(readEvents(client, "/x")))).toBeInstanceOf(UnreachableError);
});

test("a reader who leaves closes the connection", async () => {
  const { cancelled } = sends(["data: 1\n\n"], "stay");
  for await (const { data } of readEvents(client, "/x")) {
    expect(data).toBe("1");
    break;
  }
  await cancelled;
});

test("and so does a signal, whose reason is thrown", async () => {
  const { cancelled } = sends(["data: 1\n\n"], "stay");
  const stop = new AbortController();
  const reason = new Error("enough");
  const read = async (): Promise<void> => {
    for await (const _ of readEvents(client, "/x", { signal: stop.signal })) stop.abort(reason);
  };
  expect(await failureOf(read())).toBe(reason);
  await cancelled;
});

test("the query, the token and the last event reach the appliance", async () => {
  const seen: (string | null)[] = [];
  await using server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch({ url, headers }) {
      seen.push(new URL(url).search, headers.get("authorization"), headers.get("last-event-id"), headers.get("accept"));
      return new Response("", { headers: { "content-type": "text/event-stream" } });
    },
  });
  const own = new Client({ url: `http://127.0.0.1:${server.port}`, token: "t" });
  const options = { query: { follow: true }, lastEventId: "7" };
  expect(await Array.fromAsync(readEvents(own, "/x", options))).toEqual([]);
  expect(seen).toEqual(["?follow=true", "Bearer t", "7", "text/event-stream"]);
});

test("errors are those of every request, and JSON is not a stream", async () => {
  appliance.answer = () => errorReply(404, "not_found", "no such operation");
  expect(await failureOf(Array.fromAsync(readEvents(client, "/x")))).toBeInstanceOf(ResponseError);
  appliance.answer = () => Response.json({});
  expect(await failureOf(Array.fromAsync(readEvents(client, "/x")))).toBeInstanceOf(AnswerError);
});
