import { describe, expect, test } from "bun:test";
import { connect, type Socket } from "node:net";
import { AgentFrame, HostFrame, INPUT_WINDOW_BYTES_INITIAL, Refusal, Stream } from "../../src/vm/agent/protocol.ts";
import {
  EXIT_REFUSED,
  execFrames,
  frame,
  type NativeAgent,
  parseError,
  signalFrame,
  u32,
} from "../support/agent/native-agent.ts";
import { dial, ends, expectSilence, next, startNetwork } from "../support/agent/network-agent.ts";
import { dnsQuestion, heldSyn, ipv4, type Kernel } from "../support/agent/packets.ts";
import { pause, until } from "../support/waiting.ts";

const TYPE_A = 1;

/** The port of a program that will connect; each is used once. */
let lastPort = 20_000 + (process.pid % 10_000);
const freshPort = (): number => ++lastPort;

/** A connection that a program has opened, and the host has accepted. */
async function opened({
  agent,
  kernel,
}: {
  agent: NativeAgent;
  kernel: Kernel;
}): Promise<{ id: number; socket: Socket }> {
  const port = freshPort();
  const to = { from: ipv4("127.0.0.1"), to: ipv4("127.0.0.1"), fromPort: port, toPort: kernel.listener };
  kernel.hold(heldSyn(to));
  const { session: id } = await next(agent, AgentFrame.netOpen);
  agent.send(frame(HostFrame.netAccept, id));
  await kernel.packet();
  return { id, socket: await dial(kernel.listener, port) };
}

describe("a connection", () => {
  test("carries bytes in both directions, which end separately", async () => {
    await using both = await startNetwork();
    const { id, socket } = await opened(both);
    const seen: Buffer[] = [];
    socket.on("data", (chunk) => seen.push(Buffer.from(chunk)));
    const end = new Promise<void>((done) => socket.once("end", done));
    both.agent.send(frame(HostFrame.netData, id, Buffer.from("hello")), frame(HostFrame.netEnd, id));
    await end;
    expect(Buffer.concat(seen).toString()).toBe("hello");
    socket.end("world");
    let got = "";
    for (;;) {
      const { type, payload } = await both.agent.next();
      if (type === AgentFrame.netEnd) break;
      if (type === AgentFrame.netData) got += payload.toString();
    }
    expect(got).toBe("world");
    await next(both.agent, AgentFrame.done);
  });

  test("whose program is gone is reset when the host continues to send", async () => {
    await using both = await startNetwork();
    const { id, socket } = await opened(both);
    socket.destroy();
    await next(both.agent, AgentFrame.netEnd);
    let seen = 0;
    await until("the agent resets it", async () => {
      both.agent.send(frame(HostFrame.netData, id, Buffer.from("more")));
      for (let answer = await both.agent.sync(); answer.type !== AgentFrame.synced; answer = await both.agent.next()) {
        seen = answer.type;
      }
      return seen === AgentFrame.netReset;
    });
  });

  test("keeps the bytes that the host sends before the program's kernel has completed it", async () => {
    await using both = await startNetwork();
    const port = freshPort();
    const loopback = ipv4("127.0.0.1");
    both.kernel.hold(heldSyn({ from: loopback, to: loopback, fromPort: port, toPort: both.kernel.listener }));
    const { session } = await next(both.agent, AgentFrame.netOpen);
    const bytes = Buffer.alloc(INPUT_WINDOW_BYTES_INITIAL, "early");
    both.agent.send(frame(HostFrame.netAccept, session), frame(HostFrame.netData, session, bytes));
    both.agent.send(frame(HostFrame.netEnd, session), frame(HostFrame.window, session, u32(Stream.data), u32(10)));
    await both.kernel.packet();
    const socket = await dial(both.kernel.listener, port);
    const seen: Buffer[] = [];
    for await (const chunk of socket) seen.push(Buffer.from(chunk as Uint8Array));
    expect(Buffer.concat(seen)).toEqual(bytes);
  });

  test("that no program completes is reset after a while, and its room is free", async () => {
    await using both = await startNetwork();
    both.kernel.hold(heldSyn(ends(4000)));
    const { session } = await next(both.agent, AgentFrame.netOpen);
    both.agent.send(frame(HostFrame.netAccept, session));
    const reset = await next(both.agent, AgentFrame.netReset);
    expect(reset.session).toBe(session);
    both.agent.send(frame(HostFrame.netData, session, Buffer.from("late")), frame(HostFrame.netReset, session));
    expect((await both.agent.sync()).type).toBe(AgentFrame.synced);
  });

  test("that is late while the host does not read takes no processor time, and is reset afterwards", async () => {
    await using both = await startNetwork();
    both.kernel.hold(heldSyn(ends(4000)));
    const { session } = await next(both.agent, AgentFrame.netOpen);
    // Together they may send more than the socket and the output buffer can hold.
    const floods = Array.from({ length: 16 }, (_, index) => 9 + index);
    {
      using _stalled = both.agent.stall();
      both.agent.send(...floods.map((id) => execFrames(id, { argv: ["yes"] })));
      both.agent.send(frame(HostFrame.netAccept, session));
      await pause("the time to complete the connection passes", 3500);
      const before = both.agent.cpuTicks();
      await pause("an agent that turns in circles would take all of it", 500);
      expect(both.agent.cpuTicks() - before).toBeLessThan(10);
    }
    both.agent.send(...floods.map((id) => signalFrame(id, 9)));
    for (let answer = await both.agent.next(); answer.type !== AgentFrame.netReset; answer = await both.agent.next()) {
      expect(floods).toContain(answer.session);
    }
  });

  test("that was not requested is reset, and the host gets no frame", async () => {
    await using both = await startNetwork();
    const socket = connect({ port: both.kernel.listener, host: "127.0.0.1" });
    socket.on("error", () => undefined);
    await new Promise<void>((done) => socket.once("close", () => done()));
    await expectSilence(both.agent, both.kernel);
  });

  test("may begin again between the same ends when the first is over for the program", async () => {
    await using both = await startNetwork();
    const { id, socket } = await opened(both);
    const port = socket.localPort ?? 0;
    const loopback = ipv4("127.0.0.1");
    const again = { from: loopback, to: loopback, fromPort: port, toPort: both.kernel.listener };
    // The same SYN is a late repetition; another one is another connection.
    both.kernel.hold(heldSyn(again));
    await expectSilence(both.agent, both.kernel);
    both.kernel.hold(heldSyn(again, 2));
    expect((await next(both.agent, AgentFrame.netOpen)).session).not.toBe(id);
    socket.resetAndDestroy();
    expect((await next(both.agent, AgentFrame.netReset)).session).toBe(id);
  });

  test("is settled for a HOLD when it is open, and not before", async () => {
    await using both = await startNetwork();
    await opened(both);
    await both.agent.sync();
    both.agent.send(frame(HostFrame.hold, 1));
    await next(both.agent, AgentFrame.done);
    // During a hold nothing is sent; afterwards it is handled.
    both.kernel.hold(heldSyn(ends(4000)));
    both.kernel.ask(dnsQuestion("example.com", TYPE_A));
    expect(await both.agent.quiet(100)).toBe(true);
    expect((await both.agent.sync()).type).toBe(AgentFrame.synced);
    const types = [(await both.agent.next()).type, (await both.agent.next()).type];
    expect(types.sort()).toEqual([AgentFrame.netOpen, AgentFrame.resolve].sort());
    both.agent.send(frame(HostFrame.hold, 2));
    expect(parseError(await both.agent.next()).text).toBe("requests are under way");
  });

  const early = (id: number): Readonly<Record<string, Buffer>> => ({
    data: frame(HostFrame.netData, id, Buffer.from("x")),
    "an end": frame(HostFrame.netEnd, id),
    credit: frame(HostFrame.window, id, u32(Stream.data), u32(1)),
    "an unknown reason": frame(HostFrame.netRefuse, id, u32(8)),
    "no reason": frame(HostFrame.netRefuse, id, u32(0)),
    "input of a process": frame(HostFrame.stdin, id, Buffer.from("x")),
  });
  test.each(Object.keys(early(0)))("that waits for the host makes %s malformed", async (what) => {
    await using both = await startNetwork();
    both.kernel.hold(heldSyn(ends(4000)));
    const { session } = await next(both.agent, AgentFrame.netOpen);
    both.agent.send(early(session)[what] as Buffer);
    expect((await both.agent.exited).code).toBe(EXIT_REFUSED);
  });

  const late = (id: number): Readonly<Record<string, Buffer>> => ({
    "a second acceptance": frame(HostFrame.netAccept, id),
    "a refusal": frame(HostFrame.netRefuse, id, u32(Refusal.denied)),
    "more data than its credit": Buffer.concat([
      frame(HostFrame.netData, id, Buffer.alloc(INPUT_WINDOW_BYTES_INITIAL)),
      frame(HostFrame.netData, id, Buffer.alloc(1)),
    ]),
    "data after the end": Buffer.concat([frame(HostFrame.netEnd, id), frame(HostFrame.netData, id, Buffer.alloc(1))]),
  });
  test.each(Object.keys(late(0)))("that the host has accepted makes %s malformed", async (what) => {
    await using both = await startNetwork();
    both.kernel.hold(heldSyn(ends(4000)));
    const { session } = await next(both.agent, AgentFrame.netOpen);
    both.agent.send(frame(HostFrame.netAccept, session), late(session)[what] as Buffer);
    expect((await both.agent.exited).code).toBe(EXIT_REFUSED);
  });
});
