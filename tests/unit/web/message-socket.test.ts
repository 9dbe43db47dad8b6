import { expect, test } from "bun:test";
import { Client } from "../../../src/client/client.ts";
import { MessageSocket } from "../../../src/client/connections/socket.ts";
import { UnreachableError } from "../../../src/client/errors.ts";

const MIB = 1_048_576;

/** The WebSocket of a browser, which cannot be paused. */
class BrowserSocket extends EventTarget {
  binaryType = "";
  closed: number | null = null;

  close(code?: number): void {
    this.closed ??= code ?? 1005;
  }

  take(bytes: number): void {
    this.dispatchEvent(new MessageEvent("message", { data: new ArrayBuffer(bytes) }));
  }
}

async function opened(): Promise<{ socket: BrowserSocket; messages: MessageSocket }> {
  const socket = new BrowserSocket();
  const client = new Client({
    url: "http://appliance.test",
    token: null,
    socket: () => socket as unknown as WebSocket,
  });
  const opening = MessageSocket.open(client, "/x", { protocols: [] });
  socket.dispatchEvent(new Event("open"));
  return { socket, messages: await opening };
}

test("a socket that cannot be paused is closed when too much waits, and the waiting messages are read", async () => {
  const { socket, messages } = await opened();
  for (let count = 0; count < 8; count += 1) socket.take(MIB);
  expect(socket.closed).toBeNull();
  socket.take(MIB);
  expect(socket.closed).toBe(1000);
  // Messages that arrive before the other side has closed are dropped.
  for (let count = 0; count < 100; count += 1) socket.take(MIB);
  let readBytes = 0;
  const reading = (async () => {
    for await (const { byteLength } of messages.messages()) readBytes += byteLength;
  })();
  expect(await reading.catch((error: unknown) => error)).toBeInstanceOf(UnreachableError);
  expect(readBytes).toBe(9 * MIB);
  expect(messages.end?.code).toBe(1006);
});

test("a socket stays open while its messages are read", async () => {
  const { socket, messages } = await opened();
  const reading = messages.messages();
  for (let count = 0; count < 32; count += 1) {
    socket.take(MIB);
    expect((await reading.next()).value?.byteLength).toBe(MIB);
  }
  expect(socket.closed).toBeNull();
});
