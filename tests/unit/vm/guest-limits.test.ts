/** Limits and order of the connections and names that a guest requests, against a scripted agent. */

import { describe, expect, test } from "bun:test";
import { AgentProtocolError } from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import { REQUESTS_COUNT_MAX, RESOLVES_COUNT_MAX, WAITING_COUNT_MAX } from "../../../src/vm/agent/guest-network.ts";
import { AgentLink } from "../../../src/vm/agent/link.ts";
import {
  AgentFrame,
  CONNECTIONS_COUNT_MAX,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  Refusal,
} from "../../../src/vm/agent/protocol.ts";
import { exitPayload, failure, openAgent, SPEC, text } from "../../support/guests/agent-script.ts";
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
import { ScriptedAgent } from "../../support/guests/scripted-peer.ts";
import { turns, until } from "../../support/waiting.ts";

describe("limits of a guest's requests", () => {
  test("one connection too many is refused, for any opener of the others", async () => {
    const { guest, agent, requests } = await networked();
    const dials = [agent.dial(80), agent.dial(81)].map((dial) => dial.catch(() => undefined));
    await guest.frame(HostFrame.netDial, 1);
    for (let index = 0; index < CONNECTIONS_COUNT_MAX; index++) {
      guest.send(AgentFrame.netOpen, FIRST + index, openName("a.example"));
    }
    await until("all are handled", () => guest.frames.filter(({ type }) => type === HostFrame.netRefuse).length === 2);
    expect(requests.opened).toHaveLength(CONNECTIONS_COUNT_MAX - 2);
    expect((await guest.frame(HostFrame.netRefuse, 1)).payload.readUInt32LE()).toBe(Refusal.limited);
    expect(await failure(agent.dial(82))).toMatchObject({ errno: 11 });
    requests.opened[0]?.connection.refuse(Refusal.denied);
    await openConnectionLater(guest, requests, FIRST + 1000);
    expect(requests.opened).toHaveLength(CONNECTIONS_COUNT_MAX - 1);
    guest.channel.deliver(null);
    await Promise.all(dials);
  });

  test("queries are answered in any order, and too many get the answer to try again", async () => {
    const { guest, requests } = await networked();
    const query = (number: number) => guest.send(AgentFrame.resolve, number, packIntegers([16, 28]), text("a.example"));
    for (let number = 0; number <= RESOLVES_COUNT_MAX; number++) query(number);
    expect(requests.queries).toHaveLength(RESOLVES_COUNT_MAX);
    expect(requests.queries[0]).toMatchObject({ type: 28, name: "a.example" });
    const answers = async (index: number) => {
      const { session, payload } = await guest.frame(HostFrame.resolved, index);
      return [session, payload.readUInt32LE()];
    };
    expect(await answers(0)).toEqual([RESOLVES_COUNT_MAX, 2]);
    requests.queries[5]?.answer.resolve(0);
    expect(await answers(1)).toEqual([5, 0]);
    requests.queries[4]?.answer.reject(new Error("no answer"));
    expect(await answers(2)).toEqual([4, 2]);
    query(5);
    await until("the host is queried", () => requests.queries.length > RESOLVES_COUNT_MAX);
    expect(requests.queries).toHaveLength(RESOLVES_COUNT_MAX + 1);
  });

  test.each([
    ["no type", text("a")],
    ["no name", packIntegers([16, 1])],
    ["a name with a space", Buffer.concat([packIntegers([16, 1]), text("a b")])],
  ])("a query with %s breaks the protocol", async (_, payload) => {
    const { guest, agent } = await networked();
    guest.send(AgentFrame.resolve, 1, payload);
    await broken(agent);
  });

  test("two queries with the same number break the protocol", async () => {
    const { guest, agent } = await networked();
    for (const _ of [1, 2]) guest.send(AgentFrame.resolve, 1, packIntegers([16, 1]), text("a.example"));
    await broken(agent);
  });

  test("a guest with too many requests is cut off, and one with many gets its answers gradually", async () => {
    const { guest, agent } = await networked();
    const open = (index: number) => guest.send(AgentFrame.netOpen, FIRST + index, openAddress(4, [1, 2, 3, 4]));
    const answered = () => guest.frames.filter(({ type }) => type === HostFrame.netRefuse).length;
    for (let index = 0; index < CONNECTIONS_COUNT_MAX + REQUESTS_COUNT_MAX; index++) open(index);
    await turns(1);
    expect(answered()).toBeLessThan(REQUESTS_COUNT_MAX);
    await until("all beyond the connections are refused", () => answered() === REQUESTS_COUNT_MAX);
    for (let index = 1000; index < 1000 + WAITING_COUNT_MAX; index++) open(index);
    const frozen = failure(agent.freeze());
    // They are handled in several turns of the event loop, between which some intervals may begin.
    for (let index = 3000; index < 3000 + 8 * WAITING_COUNT_MAX; index++) open(index);
    expect((await frozen).message).toContain("more requests");
    expect(await frozen).toBeInstanceOf(AgentProtocolError);
  });

  test("a connection that the guest abandons while it waits is never opened", async () => {
    const { guest, requests } = await networked();
    for (let index = 0; index < REQUESTS_COUNT_MAX; index++) openConnection(guest, requests, FIRST + index);
    for (const id of [FIRST + 1000, FIRST + 1001]) guest.send(AgentFrame.netOpen, id, openName("a.example"));
    guest.send(AgentFrame.netReset, FIRST + 1000);
    await until("the host gets the request", () => requests.opened.length > REQUESTS_COUNT_MAX);
    await turns();
    expect(requests.opened).toHaveLength(REQUESTS_COUNT_MAX + 1);
    expect(guest.frames.some(({ session }) => session === FIRST + 1000)).toBe(false);
  });

  test("a guest that reads no frames is cut off before too many wait for it", async () => {
    const guest = new ScriptedAgent();
    const link = new AgentLink(guest.channel, () => undefined);
    const greeted = failure(link.hello);
    guest.channel.write = () => new Promise(() => undefined);
    let sent = 0;
    for (; !guest.channel.paused && sent < 100_000; sent++) link.post(HostFrame.netRefuse, FIRST + sent);
    expect(sent).toBeLessThan(10_000);
    expect((await greeted).message).toContain("reads no answers");
  });

  test("signals for a guest that reads nothing are refused long before it is cut off", async () => {
    const { guest, agent } = openAgent();
    const run = agent.exec({ ...SPEC, stdin: "open" }, () => undefined);
    const { session } = await guest.frame(HostFrame.execSpec);
    const blocked = Promise.withResolvers<void>();
    const write = guest.channel.write.bind(guest.channel);
    guest.channel.write = async (bytes) => {
      await blocked.promise;
      await write(bytes);
    };
    const refusals: unknown[] = [];
    for (let sent = 0; sent < 10_000; sent++) {
      try {
        run.signal(2);
      } catch (error) {
        refusals.push(error);
      }
    }
    expect(refusals).toHaveLength(10_000 - 1024);
    expect(refusals[0]).toMatchObject({ errno: 11 });
    blocked.resolve();
    await guest.frame(HostFrame.signal, 1023);
    await turns();
    run.signal(2);
    guest.send(AgentFrame.exit, session, exitPayload(0));
    expect(await run.exit).toMatchObject({ exitCode: 0 });
  });
});

test("a command's input overtakes the data of connections, which take turns", async () => {
  const { guest, agent, requests } = await networked();
  const run = agent.exec({ ...SPEC, stdin: "open" }, () => undefined);
  await guest.frame(HostFrame.execSpec);
  const connections = [0, 1, 2].map((index) => openConnection(guest, requests, FIRST + index).connection);
  for (const connection of connections) connection.accept();
  await guest.frame(HostFrame.netAccept, 2);
  const passed: (() => void)[] = [];
  const write = guest.channel.write.bind(guest.channel);
  // The transport accepts a frame when the test allows it.
  guest.channel.write = async (bytes) => {
    await write(bytes);
    await new Promise<void>((resolve) => passed.push(resolve));
  };
  const before = guest.frames.length;
  const written = connections.map((connection) => connection.write(Buffer.alloc(INPUT_WINDOW_BYTES_INITIAL / 2)));
  const more = connections.map((connection) => connection.write(Buffer.alloc(10)));
  await turns();
  const typed = run.write(text("ls\n"));
  await turns();
  while (passed.length > 0) {
    passed.shift()?.();
    await turns();
  }
  await Promise.all([...written, ...more, typed]);
  const { netData, stdin } = HostFrame;
  expect(guest.frames.slice(before).map(({ type }) => type)).toEqual([
    ...[netData, stdin, netData, netData, netData, netData, netData],
  ]);
  const data = guest.frames.slice(before).filter(({ type }) => type === netData);
  expect(data.map(({ session }) => session - FIRST)).toEqual([0, 1, 2, 0, 1, 2]);
});

test("a reset overtakes data that waits for its turn, and that data is not sent", async () => {
  const { guest, requests, connection: first } = await accepted();
  const second = openConnection(guest, requests, FIRST + 1).connection;
  second.accept();
  await guest.frame(HostFrame.netAccept, 1);
  const blocked = Promise.withResolvers<void>();
  const write = guest.channel.write.bind(guest.channel);
  guest.channel.write = async (bytes) => {
    await write(bytes);
    await blocked.promise;
  };
  const writes = [first.write(text("x")), second.write(text("y"))];
  await turns();
  second.reset();
  blocked.resolve();
  expect(await Promise.all(writes)).toEqual([true, false]);
  expect(typesOf(guest).slice(2)).toEqual([HostFrame.netData, HostFrame.netReset]);
});
