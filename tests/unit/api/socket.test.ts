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
