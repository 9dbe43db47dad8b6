import { describe, expect, test } from "bun:test";
import { Qmp, QmpClosedError, QmpError, type QmpEvent } from "../../../src/vm/qemu/qmp.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { MemoryChannel } from "../../support/guests/scripted-peer.ts";

const GREETING = '{"QMP": {"version": {}, "capabilities": []}}\r\n';

interface Command {
  readonly execute: string;
  readonly id: number;
  readonly arguments?: unknown;
}

/** A monitor that greets and accepts the capabilities; `answer` handles other commands. */
function monitor(answer: (command: Command, say: (text: string) => void) => void) {
  const channel = new MemoryChannel();
  const say = (text: string) => channel.deliver(Buffer.from(text));
  channel.onWrite = (bytes) => {
    for (const line of Buffer.from(bytes).toString().trim().split("\n")) {
      const command = JSON.parse(line) as Command;
      if (command.execute === "qmp_capabilities") say(`{"return": {}, "id": ${command.id}}\r\n`);
      else answer(command, say);
    }
  };
  say(GREETING);
  return { channel, say };
}

describe("QMP client", () => {
  test("returns the answer to each command, with cuts of the stream at any place", async () => {
    const { channel } = monitor(({ execute, id }, say) => {
      const line = `{"return": {"was": "${execute}"}, "id": ${id}}\r\n`;
      for (const character of line) say(character);
    });
    const qmp = await Qmp.open(channel);
    const answers = await Promise.all(["a", "b", "c"].map((command) => qmp.execute(command)));
    expect(answers).toEqual([{ was: "a" }, { was: "b" }, { was: "c" }]);
  });

  test("decodes several messages of one chunk", async () => {
    const ids: number[] = [];
    const { channel } = monitor(({ id }, say) => {
      ids.push(id);
      if (ids.length < 2) return;
      say(`{"event":"STOP"}\n${ids.map((each) => `{"return": ${each}, "id": ${each}}`).join("\n")}\n`);
    });
    const qmp = await Qmp.open(channel);
    const events: QmpEvent[] = [];
    qmp.onEvent((event) => events.push(event));
    const answers = await Promise.all([qmp.execute("x", { a: 1 }), qmp.execute("y")] as const);
    expect<unknown>(answers).toEqual(ids);
    expect(events).toEqual([{ event: "STOP", data: {} }]);
  });

  test("queues events until there is a listener", async () => {
    const { channel, say } = monitor(() => undefined);
    const qmp = await Qmp.open(channel);
    say('{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}, "timestamp": {}}\n');
    const events: QmpEvent[] = [];
    qmp.onEvent((event) => events.push(event));
    expect(events).toEqual([{ event: "SHUTDOWN", data: { guest: true, reason: "guest-reset" } }]);
  });

  test("accepts the events of a busy machine", async () => {
    const { channel, say } = monitor(({ id }, answer) => answer(`{"return": 1, "id": ${id}}\n`));
    const qmp = await Qmp.open(channel);
    say('{"event": "STOP"}\n'.repeat(1000));
    expect(await qmp.execute("x")).toBe(1);
  });

  test("fails a refused command with the reason, and continues", async () => {
    const { channel } = monitor(({ execute, id }, say) => {
      if (execute === "good") say(`{"return": 1, "id": ${id}}\n`);
      else say(`{"error": {"class": "GenericError", "desc": "no such thing"}, "id": ${id}}\n`);
    });
    const qmp = await Qmp.open(channel);
    const refused = qmp.execute("bad");
    expect(await throwing(refused)).toThrow("QEMU refused bad: no such thing");
    expect(await failureOf(refused)).toBeInstanceOf(QmpError);
    expect(await qmp.execute("good")).toBe(1);
  });

  test.each([
    ["text that is not JSON", "hello\n"],
    ["a list", "[]\n"],
    ["an answer without a command", '{"return": {}, "id": 77}\n'],
    ["an answer without an id", '{"return": {}}\n'],
    ["a line without an end", "x".repeat(5_000_000)],
    ["too many events", '{"event": "STOP"}\n'.repeat(1001)],
    ["a large event", `{"event": "STOP", "data": {"a": "${"x".repeat(20_000)}"}}\n`],
    ["too many empty lines", " \r\n".repeat(1001)],
  ])("ends at %s, and reads no more", async (_, bytes) => {
    const { channel, say } = monitor(() => undefined);
    const qmp = await Qmp.open(channel);
    const pending = qmp.execute("x");
    say(bytes);
    expect(channel.paused).toBe(true);
    expect(await failureOf(pending)).toBeInstanceOf(QmpClosedError);
    expect(await failureOf(qmp.execute("y"))).toBeInstanceOf(QmpClosedError);
  });

  test("refuses another protocol", async () => {
    const channel = new MemoryChannel();
    channel.deliver(Buffer.from('{"hello": 1}\n'));
    expect(await throwing(Qmp.open(channel))).toThrow("did not greet");
  });

  test.each([
    ["the monitor closes", (channel: MemoryChannel) => channel.deliver(null)],
    ["the monitor breaks the protocol", (channel: MemoryChannel) => channel.deliver(Buffer.from("no JSON\n\n[]\n"))],
  ] as const)("says once that it is over when %s", async (_, end) => {
    const { channel } = monitor(() => undefined);
    let count = 0;
    await Qmp.open(channel, () => {
      count += 1;
    });
    end(channel);
    expect(count).toBe(1);
    channel.deliver(null);
    expect(count).toBe(1);
  });

  test("ends waiting commands when the monitor closes", async () => {
    const { channel } = monitor(() => channel.deliver(null));
    const qmp = await Qmp.open(channel);
    expect(await failureOf(qmp.execute("quit"))).toBeInstanceOf(QmpClosedError);
  });
});
