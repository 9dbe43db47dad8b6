import { expect, test } from "bun:test";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ServiceManager } from "../../../src/system/notify.ts";
import { DatagramReceiver } from "../../support/datagram-receiver.ts";
import { pause, until } from "../../support/waiting.ts";

const name = (): string => join(tmpdir(), `coppice-notify-${Bun.randomUUIDv7()}`);
const none = { watchdogUs: undefined, watchdogPid: undefined };
const rethrow = (error: unknown): never => {
  throw error;
};

test.each([
  ["a path", name()],
  ["an abstract name", `@${name()}`],
])("a service manager at %s is notified, and gets beats for as long as the service lives", async (_what, socket) => {
  using receiver = new DatagramReceiver(socket);
  using manager = new ServiceManager({ socket, watchdogUs: "60000", watchdogPid: undefined, onError: rethrow });
  let alive = true;
  manager.ready("listening on\nthe port", () => alive);
  expect(receiver.take()).toEqual(["READY=1\nSTATUS=listening on the port"]);
  const beats: string[] = [];
  await until("it has heard three beats", () => beats.push(...receiver.take()) >= 3);
  expect(new Set(beats)).toEqual(new Set(["WATCHDOG=1"]));
  alive = false;
  await pause("a beat would come", 60);
  expect(receiver.take()).toEqual([]);
  alive = true;
  manager.stopping();
  await pause("a beat would come", 60);
  expect(receiver.take()).toEqual(["STOPPING=1\nSTATUS=stopping"]);
});

test("without a service manager nothing happens", () => {
  using manager = new ServiceManager({ socket: undefined, ...none, onError: rethrow });
  manager.ready("fine", () => true);
  manager.stopping();
});

test("the watchdog of another process gets no messages", async () => {
  const socket = name();
  using receiver = new DatagramReceiver(socket);
  using manager = new ServiceManager({ socket, watchdogUs: "30000", watchdogPid: "1", onError: rethrow });
  manager.ready("fine", () => true);
  await pause("a beat would come", 60);
  expect(receiver.take()).toHaveLength(1);
});

test("a service manager that is gone is reported, and harms nothing", () => {
  const errors: unknown[] = [];
  using manager = new ServiceManager({ socket: "/nowhere/socket", ...none, onError: (error) => errors.push(error) });
  manager.ready("fine", () => true);
  expect(errors).toMatchObject([{ syscall: "sendto", code: "ENOENT" }]);
});
