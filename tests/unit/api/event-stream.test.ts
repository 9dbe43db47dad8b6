import { expect, spyOn, test } from "bun:test";
import { eventStream, lastEventId, SharedFrames } from "../../../src/api/output/event-stream.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import type { LogEvent } from "../../../src/domain/log-event.ts";

const KEEPALIVE = ": keepalive\n\n";
const bytes = (text: string) => new TextEncoder().encode(text);

/** A stream whose next frames come from the test, as an event with them; null ends the stream. */
function stream(idleMs: number, isAllowed = () => Promise.resolve(true)) {
  let waiting = Promise.withResolvers<readonly LogEvent[] | null>();
  const state = { disposedCount: 0 };
  const events = { next: () => waiting.promise, [Symbol.dispose]: () => void state.disposedCount++ };
  const left = new AbortController();
  const give = (text: string | null) => {
    const before = waiting;
    waiting = Promise.withResolvers();
    const head = { id: 0, timeNs: 0n, spid: 1, type: "stdout" } as const;
    before.resolve(text === null ? null : [{ ...head, payload: bytes(text) }]);
  };
  const frames = (events: readonly LogEvent[]) => new Uint8Array(events[0]?.payload ?? []);
  const { body, headers } = eventStream({ events, frames, left, isAllowed, idleMs });
  const reader = (new Response(body as ReadableStream<Uint8Array>).body as ReadableStream<Uint8Array>).getReader();
  const read = async () => Buffer.from((await reader.read()).value ?? "").toString();
  const fail = () => waiting.reject(new Error("aborted"));
  return { give, read, reader, headers, left, state, fail };
}

test("a stream without events sends a comment after each time of silence", async () => {
  const { give, read, headers, state } = stream(5);
  expect(headers).toMatchObject({ "content-type": "text/event-stream", "cache-control": "no-cache" });
  let text = "";
  while (text.split(KEEPALIVE).length < 5) text += await read();
  give("id: 0\n\n");
  while (!text.endsWith("id: 0\n\n")) text += await read();
  while (text.endsWith("id: 0\n\n")) text += await read();
  expect(text.replaceAll(KEEPALIVE, "")).toBe("id: 0\n\n");
  give(null);
  for (let part = await read(); part !== ""; part = await read()) expect(part.replaceAll(KEEPALIVE, "")).toBe("");
  expect(state.disposedCount).toBeGreaterThan(0);
});

test("a client that leaves aborts the wait", async () => {
  const { read, reader, left, state } = stream(60_000);
  expect(await read()).toBe(KEEPALIVE);
  await reader.cancel();
  expect([left.signal.aborted, state.disposedCount > 0]).toEqual([true, true]);
});

test("a stream ends without a failure when its client may no longer read", async () => {
  const started = spyOn(globalThis, "setInterval").mockReturnValue(7 as never);
  const cleared = spyOn(globalThis, "clearInterval").mockReturnValue(undefined);
  using _restored = {
    [Symbol.dispose]: () => {
      started.mockRestore();
      cleared.mockRestore();
    },
  };
  let isAllowed = true;
  const { read, left, state, fail } = stream(60_000, () => Promise.resolve(isAllowed));
  left.signal.addEventListener("abort", fail);
  const onInterval = started.mock.calls[0]?.[0] as () => void;
  expect(await read()).toBe(KEEPALIVE);
  onInterval();
  await Promise.resolve();
  expect([left.signal.aborted, state.disposedCount]).toEqual([false, 0]);
  isAllowed = false;
  onInterval();
  expect(await read()).toBe("");
  expect(state.disposedCount).toBeGreaterThan(0);
  expect(cleared.mock.calls[0]?.[0] as unknown).toBe(7);
});

test("the header of a client that continues is the id of an event or missing", () => {
  const idOf = (value: string) =>
    lastEventId(new Request("http://localhost/", { headers: { "last-event-id": value } }));
  expect(lastEventId(new Request("http://localhost/"))).toBeNull();
  expect([idOf(""), idOf("0"), idOf("17"), idOf("999999999999999")]).toEqual([null, 0, 17, 999_999_999_999_999]);
  for (const value of ["-1", "1.5", "x", "0x1", "1 2", "9999999999999999"]) {
    expect(() => idOf(value)).toThrow(ApiError);
  }
});

test("followers of the same events share their frames", () => {
  let count = 0;
  const shared = new SharedFrames(() => bytes(String(count++)));
  const [some, others]: LogEvent[][] = [[], []];
  expect(shared.of(some ?? [])).toBe(shared.of(some ?? []));
  expect(shared.of(others ?? [])).not.toBe(shared.of(some ?? []));
  expect(count).toBe(2);
});
