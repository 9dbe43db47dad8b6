/** Connections and names that the guest requests, against a scripted agent. */

import { describe, expect, test } from "bun:test";
import type { Destination } from "../../../src/domain/network.ts";
import { AgentClosedError } from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import {
  AgentFrame,
  CONNECTIONS_COUNT_MAX,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  INPUT_WINDOW_BYTES_MAX,
  NetworkFlag,
  Refusal,
  Stream,
} from "../../../src/vm/agent/protocol.ts";
import { done, failure, openAgent, text } from "../../support/guests/agent-script.ts";
import {
  accepted,
  broken,
  FIRST,
  networked,
  openAddress,
  openConnection,
  openConnectionLater,
  openName,
  typesOf,
} from "../../support/guests/guest-requests.ts";
import { turns } from "../../support/waiting.ts";

const NOTHING = new Uint8Array(0);

describe("a network", () => {
  test("is turned on by one frame", async () => {
    const { guest } = await networked();
    expect(guest.frames.map(({ type, payload }) => [type, payload.readUInt32LE()])).toEqual([
      [HostFrame.network, NetworkFlag.on],
    ]);
  });

  test.each([
    ["a name", openName("xn--a.b-c_d.example", 8080), { kind: "name", host: "xn--a.b-c_d.example", port: 8080 }],
    ["an IPv4 address", openAddress(4, [192, 0, 2, 1]), { kind: "address", host: "192.0.2.1", port: 80 }],
    [
      "an IPv6 address",
      openAddress(6, [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a]),
      { kind: "address", host: "2001:db8::a", port: 80 },
    ],
    [
      "a mapped address",
      openAddress(6, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]),
      { kind: "address", host: "::ffff:7f00:1", port: 80 },
    ],
  ])("gets a request for %s", async (_, payload, destination) => {
    const { guest, requests } = await networked();
    guest.send(AgentFrame.netOpen, FIRST, payload);
    expect(requests.opened[0]?.destination).toEqual(destination as Destination);
  });

  test("without a configuration refuses and counts connections, and has no names", async () => {
    const { guest, agent } = openAgent();
    guest.send(AgentFrame.netOpen, FIRST, openName("a.example"));
    guest.send(AgentFrame.netOpen, FIRST + 7, openAddress(4, [1, 1, 1, 1]));
    guest.send(AgentFrame.resolve, 0, packIntegers([16, 1]), text("a.example"));
    await turns();
    expect(guest.frames.map(({ type, payload }) => [type, payload.readUInt32LE()])).toEqual([
      [HostFrame.netRefuse, Refusal.noNetwork],
      [HostFrame.netRefuse, Refusal.noNetwork],
      [HostFrame.resolved, 3],
    ]);
    expect(agent.uninvitedCount).toBe(2);
    guest.send(AgentFrame.netData, FIRST, text("x"));
    await broken(agent);
  });

  test.each([
    ["no port", openName("a.example", 0)],
    ["no payload", NOTHING],
    ["an unknown kind", openAddress(5, [1, 2, 3, 4])],
    ["a kind with a reserve", openAddress(4 + 256, [1, 2, 3, 4])],
    ["a short address", openAddress(4, [1, 2, 3])],
    ["an IPv4 address too long", openAddress(4, [1, 2, 3, 4, 5])],
    ["an IPv6 address of 4 bytes", openAddress(6, [1, 2, 3, 4])],
    ["an empty name", openName("")],
    ["a final dot", openName("a.example.")],
    ["an empty label", openName("a..example")],
    ["an upper-case letter", openName("A.example")],
    ["a control character", openName("a\n.example")],
    ["a zero", openName("a.example\0")],
    ["a quote", openName('a".example')],
    ["a letter beyond ASCII", openName("\xe4.example")],
    ["a label of 64 characters", openName(`${"a".repeat(64)}.example`)],
    ["254 characters", openName(`${"a.".repeat(126)}bc`)],
  ])("gets no request for a destination with %s, which breaks the protocol", async (_, payload) => {
    const { guest, agent, requests } = await networked();
    guest.send(AgentFrame.netOpen, FIRST, payload);
    await broken(agent);
    expect(requests.opened).toEqual([]);
  });

  test("accepts the longest name", async () => {
    const { guest, requests } = await networked();
    const name = `${"a.".repeat(126)}b`;
    guest.send(AgentFrame.netOpen, FIRST, openName(name));
    expect(requests.opened[0]?.destination.host).toBe(name);
  });

  test.each([
    ["of the host", 1],
    ["of the stream", 0],
    ["used twice", FIRST + 3],
    ["that counts down", FIRST + 2],
  ])("a connection with a number %s breaks the protocol", async (_, id) => {
    const { guest, agent, requests } = await networked();
    openConnection(guest, requests, FIRST + 3).connection.refuse(Refusal.denied);
    guest.send(AgentFrame.netOpen, id, openName("a.example"));
    await broken(agent);
  });
});

describe("a connection of the guest", () => {
  test("carries bytes in both directions, which end separately", async () => {
    const { guest, connection } = await accepted();
    guest.send(AgentFrame.netData, FIRST, text("GET"));
    guest.send(AgentFrame.netEnd, FIRST);
    const seen: string[] = [];
    for await (const chunk of connection.chunks()) seen.push(Buffer.from(chunk).toString());
    expect(seen).toEqual(["GET"]);
    expect(await connection.write(text("200"))).toBe(true);
    guest.send(AgentFrame.window, FIRST, packIntegers([32, Stream.data], [32, 3]));
    await connection.end();
    guest.send(AgentFrame.done, FIRST, done());
    // The connection is not broken: its data may still be on its way.
    expect(connection.signal.aborted).toBe(false);
    expect(await connection.write(text("late"))).toBe(false);
    expect(typesOf(guest)).toEqual([HostFrame.netAccept, HostFrame.netData, HostFrame.netEnd]);
  });

  test("is over after a refusal, also when the guest's reset crosses it", async () => {
    const { guest, agent, requests } = await networked();
    const { connection } = openConnection(guest, requests);
    connection.refuse(Refusal.timedOut);
    expect((await guest.frame(HostFrame.netRefuse)).payload.readUInt32LE()).toBe(Refusal.timedOut);
    expect(connection.signal.aborted).toBe(true);
    connection.refuse(Refusal.denied);
    connection.accept();
    connection.reset();
    guest.send(AgentFrame.netReset, FIRST);
    const frozen = agent.freeze();
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.freeze)).session, done());
    await frozen;
    expect(typesOf(guest)).toEqual([HostFrame.netRefuse, HostFrame.freeze]);
    guest.send(AgentFrame.netReset, FIRST + 1);
    await broken(agent);
  });

  test("is over when the guest abandons it before the answer", async () => {
    const { guest, requests } = await networked();
    const { connection } = openConnection(guest, requests);
    guest.send(AgentFrame.netReset, FIRST);
    expect(connection.signal.aborted).toBe(true);
    connection.accept();
    connection.refuse(Refusal.denied);
    await turns();
    expect(typesOf(guest)).toEqual([]);
  });

  test("is refused when the host ends it before it was accepted", async () => {
    const { guest, requests } = await networked();
    await openConnection(guest, requests).connection[Symbol.asyncDispose]();
    expect((await guest.frame(HostFrame.netRefuse)).payload.readUInt32LE()).toBe(Refusal.unreachable);
  });

  test("is over when the stream closes", async () => {
    const { guest, requests, connection } = await accepted();
    const waiting = openConnection(guest, requests, FIRST + 1).connection;
    const reading = connection.chunks().next();
    guest.channel.deliver(null);
    expect(await failure(reading)).toBeInstanceOf(AgentClosedError);
    expect([connection.signal.aborted, waiting.signal.aborted]).toEqual([true, true]);
    expect(await connection.write(text("x"))).toBe(false);
    waiting.accept();
  });

  test.each([
    ["data", AgentFrame.netData, text("x")],
    ["an end", AgentFrame.netEnd, NOTHING],
    ["credit", AgentFrame.window, packIntegers([32, Stream.data], [32, 1])],
    ["a refusal", AgentFrame.netRefused, packIntegers([32, 2])],
    ["an opening", AgentFrame.netOpened, NOTHING],
    ["a reset with a payload", AgentFrame.netReset, Buffer.alloc(1)],
  ])("%s before it is accepted breaks the protocol", async (_, type, payload) => {
    const { guest, agent, requests } = await networked();
    openConnection(guest, requests);
    guest.send(type, FIRST, payload);
    await broken(agent);
  });

  test("breaks the protocol with data after the guest's end, or beyond the credit", async () => {
    for (const first of [AgentFrame.netEnd, AgentFrame.netData]) {
      const { guest, agent } = await accepted();
      const bytes = first === AgentFrame.netData ? Buffer.alloc(INPUT_WINDOW_BYTES_INITIAL) : NOTHING;
      guest.send(first, FIRST, bytes);
      guest.send(AgentFrame.netData, FIRST, text("x"));
      await broken(agent);
    }
  });

  test("has a window that grows to 32 MiB with all others, and shrinks again", async () => {
    const { guest, requests } = await networked();
    const grow = async (id: number): Promise<number> => {
      const { connection } = await openConnectionLater(guest, requests, id);
      connection.accept();
      const before = guest.frames.filter(({ type }) => type === HostFrame.window).length;
      guest.send(AgentFrame.netData, id, Buffer.alloc(INPUT_WINDOW_BYTES_INITIAL));
      const chunks = connection.chunks();
      await chunks.next();
      void chunks.next().catch(() => undefined);
      return (await guest.frame(HostFrame.window, before)).payload.readUInt32LE(4);
    };
    const grants: number[] = [];
    for (let index = 0; index < 100; index++) grants.push(await grow(FIRST + index));
    const grownBytes = INPUT_WINDOW_BYTES_MAX - INPUT_WINDOW_BYTES_INITIAL;
    const grown = grants.filter((bytes) => bytes === INPUT_WINDOW_BYTES_MAX).length;
    expect(grown).toBe(Math.floor((33_554_432 - CONNECTIONS_COUNT_MAX * INPUT_WINDOW_BYTES_INITIAL) / grownBytes));
    expect(grants.slice(grown)).toEqual(grants.slice(grown).map(() => INPUT_WINDOW_BYTES_INITIAL));
    guest.send(AgentFrame.netReset, FIRST);
    expect(await grow(FIRST + 100)).toBe(INPUT_WINDOW_BYTES_MAX);
  });
});
