import { afterEach, beforeEach, expect, type Mock, spyOn, test } from "bun:test";
import { setImmediate } from "node:timers/promises";
import type { ServerWebSocket } from "bun";
import { Socket } from "../../../src/api/socket.ts";
import { turns } from "../../support/waiting.ts";

// No server closes the sockets of the tests, so their pings would continue after a test.
let started: Mock<typeof setInterval>;
beforeEach(() => {
  started = spyOn(globalThis, "setInterval").mockReturnValue(undefined as never);
});
afterEach(() => started.mockRestore());

test("a socket is closed when its token is no longer valid", async () => {
  const done: unknown[] = [];
  const raw = {
    ping: () => done.push("ping"),
    close: (...how: unknown[]) => done.push(how),
  } as unknown as ServerWebSocket<unknown>;
  let isValid = true;
  const socket = new Socket();
  socket.handlers(async () => isValid, "a").open(raw);
  const onInterval = started.mock.calls[0]?.[0] as () => void;
  onInterval();
  await Promise.resolve();
  expect([done, socket.isOpen]).toEqual([["ping"], true]);
  isValid = false;
  onInterval();
  expect(await socket.closed).toEqual({ code: 1008, reason: "the token is no longer valid" });
  expect(done).toEqual(["ping", "ping", [1008, "the token is no longer valid"]]);
});

test("a long text message closes a socket unread", async () => {
  const texts: string[] = [];
  const socket = new Socket({ onText: (text) => texts.push(text) > 0 });
  const { open, message } = socket.handlers(async () => true, {});
  open({ close: () => undefined } as unknown as ServerWebSocket<unknown>);
  message(null, "x".repeat(64));
  expect([texts.length, socket.isOpen]).toEqual([1, true]);
  message(null, "x".repeat(65));
  expect((await socket.closed).code).toBe(1003);
  expect(texts).toHaveLength(1);
});

/** A socket whose client has sent no message yet, and a function that delivers messages. */
function opened(joins: boolean, onText?: (text: string) => boolean) {
  const socket = new Socket({ joins, ...(onText === undefined ? {} : { onText }) });
  const { open, message } = socket.handlers(async () => true, {});
  open({ close: () => undefined, ping: () => undefined } as unknown as ServerWebSocket<unknown>);
  const arrive = (...messages: (string | Uint8Array)[]) => {
    for (const each of messages) message(null, each);
  };
  return { socket, arrive };
}

test("a few short messages are read in each turn of the event loop", async () => {
  const { socket, arrive } = opened(false);
  let count = 0;
  const reading = (async () => {
    for await (const _ of socket.messages()) count += 1;
  })();
  for (let sent = 0; sent < 2000; sent++) arrive(Uint8Array.of(1));
  const counts: number[] = [];
  for (let before = 0; before < 2000; before = count) {
    await setImmediate();
    counts.push(count - before);
  }
  expect(Math.max(...counts)).toBeLessThanOrEqual(256);
  socket.close(1000);
  await reading;
});

test("waiting bytes of a stream are joined in their order, from any number of messages", async () => {
  const { socket, arrive } = opened(true);
  const long = new Uint8Array(10_000).fill(2);
  for (let sent = 0; sent < 30_000; sent++) arrive(Uint8Array.of(1));
  arrive(new Uint8Array(), long, new Uint8Array(), "text", Uint8Array.of(3), Uint8Array.of(4));
  expect(socket.isOpen).toBe(true);
  const read: (string | Uint8Array)[] = [];
  const reading = (async () => {
    for await (const message of socket.messages()) read.push(typeof message === "string" ? message : message.slice());
  })();
  await turns();
  expect(read.length).toBeLessThan(50);
  const bytes = (parts: readonly (string | Uint8Array)[]) =>
    Buffer.concat(parts.filter((part) => typeof part !== "string"));
  const at = read.indexOf("text");
  expect(bytes(read.slice(0, at))).toEqual(Buffer.concat([Buffer.alloc(30_000, 1), long]));
  expect([...bytes(read.slice(at))]).toEqual([3, 4]);
  for (let sent = 0; sent < 100; sent++) arrive(new Uint8Array(4096));
  expect([socket.isOpen, (await socket.closed).code]).toEqual([false, 1009]);
  await reading;
});

test("4096 messages that cannot be joined may wait, and one more closes the socket", async () => {
  const { socket, arrive } = opened(false);
  for (let sent = 0; sent < 4096; sent++) arrive(Uint8Array.of(1));
  expect(socket.isOpen).toBe(true);
  arrive(Uint8Array.of(1));
  expect((await socket.closed).code).toBe(1009);
});

test("text messages are passed on in their order, a few in each turn of the event loop", async () => {
  const texts: string[] = [];
  const { socket, arrive } = opened(true, (text) => texts.push(text) > 0 && text !== "3999");
  arrive("0");
  expect(texts).toEqual(["0"]);
  for (let sent = 1; sent < 4000; sent++) arrive(String(sent));
  const counts = [texts.length];
  for (let before = 1; before < 4000; before = texts.length) {
    await setImmediate();
    counts.push(texts.length - before);
  }
  expect(Math.max(...counts)).toBeLessThanOrEqual(256);
  expect(texts).toEqual(Array.from({ length: 4000 }, (_, sent) => String(sent)));
  expect((await socket.messages().next()).value).toBe("3999");
});

test("as many text messages as fit into 4096 places may wait", async () => {
  let count = 0;
  const { socket, arrive } = opened(true, () => {
    count += 1;
    return true;
  });
  for (let sent = 0; sent <= 4096; sent++) arrive("1");
  expect(socket.isOpen).toBe(true);
  for (let sent = 0; sent < 100_000; sent++) arrive("1");
  expect((await socket.closed).code).toBe(1009);
  expect(count).toBe(1);
});

test("an owner's sockets receive a bounded number of frames in a turn of the event loop, of any kind", async () => {
  const open = (owner: string) => {
    const socket = new Socket({ joins: true });
    const { open: begin, message, ping, pong } = socket.handlers(async () => true, owner);
    begin({ close: () => undefined } as unknown as ServerWebSocket<unknown>);
    const frames = [() => message(null, Uint8Array.of(1)), ping, pong];
    return { socket, receive: (kind: number) => frames[kind % 3]?.() };
  };
  const [first, second, other] = [open("a"), open("a"), open("b")];
  for (let sent = 0; sent < 32_768; sent++) first.receive(sent);
  for (let sent = 0; sent < 1000; sent++) other.receive(sent);
  expect([first.socket.isOpen, second.socket.isOpen]).toEqual([true, true]);
  second.receive(1);
  expect(await second.socket.closed).toEqual({ code: 1009, reason: "too many short messages at once" });
  await turns();
  for (let sent = 0; sent < 1000; sent++) first.receive(sent);
  expect([first.socket.isOpen, other.socket.isOpen]).toEqual([true, true]);
});

test("the text messages of many sockets of an owner do not delay those of another", async () => {
  const open = (owner: string, onText: () => boolean) => {
    const { open: begin, message } = new Socket({ onText }).handlers(async () => true, owner);
    begin({} as unknown as ServerWebSocket<unknown>);
    return () => message(null, "1");
  };
  let manyCount = 0;
  let otherCount = 0;
  const many = Array.from({ length: 100 }, () => open("many", () => ++manyCount > 0));
  const other = open("other", () => ++otherCount > 0);
  for (const receive of [...many, ...many, other, other]) receive();
  expect([manyCount, otherCount]).toEqual([100, 1]);
  await turns(5);
  expect(otherCount).toBe(2);
  expect(manyCount).toBeLessThan(110);
  await turns(200);
  expect(manyCount).toBe(200);
});
