import { expect, test } from "bun:test";
import { DataReceiver, DataSender } from "../../../src/network/gate/flow.ts";
import { FrameError, FrameReader, WINDOW_BYTES } from "../../../src/network/gate/frames.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";

/** A socket whose writes are read as frames. */
function recorder() {
  const got = { data: 0, ends: 0, granted: 0, bytes: [] as Uint8Array[] };
  const reader = new FrameReader(0, {
    message: () => undefined,
    data: (bytes) => {
      got.data += bytes.byteLength;
      got.bytes.push(Uint8Array.from(bytes));
    },
    end: () => {
      got.ends += 1;
    },
    reset: () => undefined,
    window: (bytes) => {
      got.granted += bytes;
    },
  });
  return { got, socket: { write: (bytes: Uint8Array) => reader.push(bytes) } };
}

test("a sender sends a window, waits for credit, and keeps the order with the end last", () => {
  const { got, socket } = recorder();
  const events: string[] = [];
  const sender = new DataSender(socket, { onRoom: () => events.push("room"), onEnded: () => events.push("ended") });
  const content = seededRandom(seedOfTests()).bytes(WINDOW_BYTES + 1000);
  expect(sender.send(content.subarray(0, WINDOW_BYTES - 10))).toBeTrue();
  expect(sender.send(content.subarray(WINDOW_BYTES - 10, WINDOW_BYTES + 500))).toBeFalse();
  expect(sender.send(content.subarray(WINDOW_BYTES + 500))).toBeFalse();
  sender.end();
  expect([got.data, got.ends, events]).toEqual([WINDOW_BYTES, 0, []]);
  sender.granted(600);
  expect([got.data, got.ends, events]).toEqual([WINDOW_BYTES + 600, 0, []]);
  sender.granted(5000);
  expect([got.data, got.ends, events]).toEqual([content.byteLength, 1, ["ended", "room"]]);
  expect(Buffer.concat(got.bytes)).toEqual(Buffer.from(content));
});

test("a credit for bytes that were not sent breaks the connection", () => {
  const { socket } = recorder();
  const sender = new DataSender(socket, { onRoom: () => undefined, onEnded: () => undefined });
  sender.send(new Uint8Array(100));
  expect(() => sender.granted(101)).toThrow(FrameError);
});

test("a receiver accepts a window, and grants credit for the bytes read", () => {
  const { got, socket } = recorder();
  const receiver = new DataReceiver(socket);
  receiver.arrived(WINDOW_BYTES);
  receiver.taken(10);
  expect(got.granted).toBe(0);
  receiver.taken(WINDOW_BYTES / 2);
  expect(got.granted).toBe(10 + WINDOW_BYTES / 2);
  receiver.arrived(10 + WINDOW_BYTES / 2);
  expect(() => receiver.arrived(1)).toThrow(FrameError);
});
