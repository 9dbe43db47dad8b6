/** What a guest has requested and the host has not answered, across a record: against scripted agents. */
import { expect, test } from "bun:test";
import { Agent, AgentProtocolError } from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import { type GuestNetwork, Rcode, RESOLVES_COUNT_MAX, WISHES_COUNT_MAX } from "../../../src/vm/agent/guest-network.ts";
import { AgentFrame, HostFrame, Refusal } from "../../../src/vm/agent/protocol.ts";
import type { AgentRecord } from "../../../src/vm/agent/record.ts";
import { done, failure, text } from "../../support/guests/agent-script.ts";
import { Asked, ask, FIRST, networked, openName, typesOf } from "../../support/guests/guest-asks.ts";
import { ScriptedAgent } from "../../support/guests/scripted-peer.ts";
import { turns, until } from "../../support/waiting.ts";

const QUERY = FIRST + 900;

/** Holds the stream and returns the record, as another process would read it. */
async function recordOf({ guest, agent }: { guest: ScriptedAgent; agent: Agent }): Promise<AgentRecord> {
  const holding = agent.hold();
  guest.send(AgentFrame.done, (await guest.frame(HostFrame.hold)).session, done());
  await holding;
  return JSON.parse(JSON.stringify(agent.record()));
}

/** Continues from the record with another stream, which stays held until `release`. */
function resume(record: AgentRecord, network: GuestNetwork | null) {
  const guest = new ScriptedAgent();
  const process = () => {
    throw new Error("the record has no process");
  };
  const resumed = Agent.resume(guest.channel, record, { process, network });
  const release = async () => {
    const synced = resumed.agent.sync({ realtimeNs: 1n, entropy: new Uint8Array(32) });
    const { session, payload } = await guest.frame(HostFrame.sync);
    guest.send(AgentFrame.synced, session, payload.subarray(8, 16));
    await synced;
  };
  return { guest, ...resumed, release };
}

const resolve = (guest: ScriptedAgent, number: number, name: string) =>
  guest.send(AgentFrame.resolve, number, packIntegers([16, 28]), text(name));

/** Numbers and codes of the answers to queries. */
const codes = (guest: ScriptedAgent) =>
  guest.frames
    .filter(({ type }) => type === HostFrame.resolved)
    .map(({ session, payload }) => [session, payload.readUInt32LE()]);

test("connections and names without an answer are requested of the new network, and answered once", async () => {
  const before = await networked();
  const { connection: accepted } = ask(before.guest, before.asked, FIRST);
  accepted.accept();
  ask(before.guest, before.asked, FIRST + 1);
  ask(before.guest, before.asked, FIRST + 2).connection.refuse(Refusal.denied);
  resolve(before.guest, QUERY, "answered.example");
  before.asked.queries[0]?.answer.resolve(Rcode.ok);
  await turns();
  resolve(before.guest, QUERY + 1, "open.example");
  const record = await recordOf(before);
  expect(record.queries).toEqual([{ number: QUERY + 1, type: 28, name: "open.example" }]);

  const asked = new Asked();
  const { guest, agent, connections, release } = resume(record, asked);
  expect(connections).toHaveLength(1);
  expect(asked.opened.map(({ destination }) => destination.host)).toEqual(["deb.example"]);
  expect(asked.queries).toMatchObject([{ type: 28, name: "open.example" }]);
  asked.opened[0]?.connection.accept();
  asked.queries[0]?.answer.resolve(Rcode.noSuchName);
  await turns();
  // The answers wait for the end of the hold.
  expect(guest.frames).toEqual([]);
  await release();
  expect(typesOf(guest)).toEqual([HostFrame.netAccept, HostFrame.resolved]);
  expect(guest.frames[1]?.session).toBe(FIRST + 1);
  expect(codes(guest)).toEqual([[QUERY + 1, Rcode.noSuchName]]);
  // The number of an earlier session is not accepted again.
  guest.send(AgentFrame.netOpen, FIRST + 2, openName("a.example"));
  expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
});

test("without a network, what has no answer is refused", async () => {
  const before = await networked();
  ask(before.guest, before.asked);
  resolve(before.guest, QUERY, "a.example");
  const { guest, connections, release } = resume(await recordOf(before), null);
  expect(connections).toEqual([]);
  await release();
  expect(guest.frames.slice(1).map(({ type, payload }) => [type, payload.readUInt32LE()])).toEqual([
    [HostFrame.netRefuse, Refusal.noNetwork],
    [HostFrame.resolved, Rcode.noSuchName],
  ]);
});

test("a guest that closes a connection after the record ends the request for it", async () => {
  const before = await networked();
  ask(before.guest, before.asked);
  const asked = new Asked();
  const { guest, agent, release } = resume(await recordOf(before), asked);
  await release();
  guest.send(AgentFrame.netReset, FIRST);
  expect(asked.opened[0]?.connection.signal.aborted).toBe(true);
  asked.opened[0]?.connection.accept();
  await turns();
  expect(typesOf(guest)).toEqual([]);
  expect(() => agent.record()).toThrow("the stream is not held");
});

test("requests that waited for a later interval are requested after it, and their refusals are sent", async () => {
  const before = await networked();
  // As many as one interval has room for, then queries, of which the last is one too many.
  for (let index = 0; index < WISHES_COUNT_MAX; index++) ask(before.guest, before.asked, FIRST + index);
  for (let index = 0; index <= RESOLVES_COUNT_MAX; index++) resolve(before.guest, QUERY + index, `n${index}.example`);
  expect(before.asked.queries).toEqual([]);
  const record = await recordOf(before);
  expect(record.queries).toHaveLength(RESOLVES_COUNT_MAX);

  const asked = new Asked();
  const { guest, release } = resume(record, asked);
  expect(asked.opened).toHaveLength(WISHES_COUNT_MAX);
  expect(asked.queries).toEqual([]);
  await until("the next interval begins", () => asked.queries.length === RESOLVES_COUNT_MAX);
  await release();
  expect(codes(guest)).toEqual([[QUERY + RESOLVES_COUNT_MAX, Rcode.serverFailure]]);
});
