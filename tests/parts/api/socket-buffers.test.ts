import { expect, test } from "bun:test";
import { setImmediate } from "node:timers/promises";
import type { ServerWebSocket } from "bun";
import { SENT_BYTES_MAX, SOCKET_SETTINGS, Socket } from "../../../src/api/socket.ts";

/** Limit of a server's buffer for a client that reads nothing, or a little at times, in `bytes`. */
async function bufferedBytes(talk: (socket: Socket) => Promise<unknown>, readsSometimes: boolean): Promise<number> {
  const socket = new Socket();
  const { open, ...handlers } = socket.handlers(async () => true, "a");
  let raw: ServerWebSocket<unknown> | null = null;
  using server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch: (request, self) => (self.upgrade(request) ? undefined : new Response()),
    websocket: {
      ...SOCKET_SETTINGS,
      ...handlers,
      open: (opened) => {
        raw = opened;
        open(opened);
      },
    },
  });
  const client = await Bun.connect({
    hostname: "127.0.0.1",
    port: server.port ?? 0,
    socket: { data: (reading) => void reading.pause() },
  });
  const lines = ["GET / HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"];
  client.write(`${lines.join("\r\n")}\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n`);
  while (raw === null) await setImmediate();
  let longest = 0;
  let isDone = false;
  void talk(socket).then(() => {
    isDone = true;
  });
  for (let turn = 0; turn < 3000 && !isDone; turn++) {
    await setImmediate();
    longest = Math.max(longest, (raw as ServerWebSocket<unknown>).getBufferedAmount());
    if (readsSometimes && turn % 10 === 0) client.resume();
  }
  client.terminate();
  socket.close(1000);
  return longest;
}

test("what waits for a client that does not read is less than 256 KiB", async () => {
  const content = new Uint8Array(SENT_BYTES_MAX);
  const send = async (socket: Socket) => {
    for (let count = 0; count < 1000 && (await socket.send(content)); ) count += 1;
  };
  for (const readsSometimes of [false, true]) {
    const bytes = await bufferedBytes(send, readsSometimes);
    expect(bytes).toBeGreaterThan(0);
    expect(bytes).toBeLessThanOrEqual(2 * SENT_BYTES_MAX);
  }
  const notify = async (socket: Socket) => {
    while (socket.isOpen) {
      for (let count = 0; count < 100; count++) socket.notify(content.subarray(0, 4096));
      await setImmediate();
    }
  };
  expect(await bufferedBytes(notify, false)).toBeLessThan(262_144);
});
