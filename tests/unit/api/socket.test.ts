import { expect, spyOn, test } from "bun:test";
import type { ServerWebSocket } from "bun";
import { Socket } from "../../../src/api/socket.ts";

test("a socket is closed when its token is not valid any more", async () => {
  const started = spyOn(globalThis, "setInterval").mockReturnValue(undefined as never);
  using _restored = { [Symbol.dispose]: () => started.mockRestore() };
  const done: unknown[] = [];
  const raw = {
    ping: () => done.push("ping"),
    close: (...how: unknown[]) => done.push(how),
  } as unknown as ServerWebSocket<unknown>;
  let isValid = true;
  const socket = new Socket();
  socket.handlers(async () => isValid).open(raw);
  const onInterval = started.mock.calls[0]?.[0] as () => void;
  onInterval();
  await Promise.resolve();
  expect([done, socket.isOpen]).toEqual([["ping"], true]);
  isValid = false;
  onInterval();
  expect(await socket.closed).toEqual({ code: 1008, reason: "the token is not valid any more" });
  expect(done).toEqual(["ping", "ping", [1008, "the token is not valid any more"]]);
});

test("a long text message closes a socket before anything reads it", async () => {
  const texts: string[] = [];
  const socket = new Socket((text) => texts.push(text) > 0);
  const { open, message } = socket.handlers(async () => true);
  open({ close: () => undefined } as unknown as ServerWebSocket<unknown>);
  message(null, "x".repeat(64));
  expect([texts.length, socket.isOpen]).toEqual([1, true]);
  message(null, "x".repeat(65));
  expect((await socket.closed).code).toBe(1003);
  expect(texts).toHaveLength(1);
});
