/** Requests of a guest that the host has not answered, across a record, against scripted agents. */
import { expect, test } from "bun:test";
import { Agent, AgentProtocolError } from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import {
  type GuestNetwork,
  Rcode,
  REQUESTS_COUNT_MAX,
  RESOLVES_COUNT_MAX,
} from "../../../src/vm/agent/guest-network.ts";
import { AgentFrame, HostFrame, Refusal } from "../../../src/vm/agent/protocol.ts";
import type { AgentRecord } from "../../../src/vm/agent/record.ts";
import { done, failure, text } from "../../support/guests/agent-script.ts";
import {
  FIRST,
  GuestRequests,
  networked,
  openConnection,
  openName,
  typesOf,
} from "../../support/guests/guest-requests.ts";
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

test("requests unanswered connections and names from the new network, and answers them once", async () => {
  const before = await networked();
  const { connection: accepted } = openConnection(before.guest, before.requests, FIRST);
  accepted.accept();
  openConnection(before.guest, before.requests, FIRST + 1);
  openConnection(before.guest, before.requests, FIRST + 2).connection.refuse(Refusal.denied);
  resolve(before.guest, QUERY, "answered.example");
  before.requests.queries[0]?.answer.resolve(Rcode.ok);
  await turns();
  resolve(before.guest, QUERY + 1, "open.example");
  const record = await recordOf(before);
  expect(record.queries).toEqual([{ number: QUERY + 1, type: 28, name: "open.example" }]);

  const requests = new GuestRequests();
  const { guest, agent, connections, release } = resume(record, requests);
  expect(connections).toHaveLength(1);
  expect(requests.opened.map(({ destination }) => destination.host)).toEqual(["deb.example"]);
  expect(requests.queries).toMatchObject([{ type: 28, name: "open.example" }]);
  requests.opened[0]?.connection.accept();
  requests.queries[0]?.answer.resolve(Rcode.noSuchName);
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

test("refuses unanswered requests without a network", async () => {
  const before = await networked();
  openConnection(before.guest, before.requests);
  resolve(before.guest, QUERY, "a.example");
  const { guest, connections, release } = resume(await recordOf(before), null);
  expect(connections).toEqual([]);
  await release();
  expect(guest.frames.slice(1).map(({ type, payload }) => [type, payload.readUInt32LE()])).toEqual([
    [HostFrame.netRefuse, Refusal.noNetwork],
    [HostFrame.resolved, Rcode.noSuchName],
  ]);
});

test("ends the request of a connection that the guest closes after the record", async () => {
  const before = await networked();
  openConnection(before.guest, before.requests);
  const requests = new GuestRequests();
  const { guest, agent, release } = resume(await recordOf(before), requests);
  await release();
  guest.send(AgentFrame.netReset, FIRST);
  expect(requests.opened[0]?.connection.signal.aborted).toBe(true);
  requests.opened[0]?.connection.accept();
  await turns();
  expect(typesOf(guest)).toEqual([]);
  expect(() => agent.record()).toThrow("the stream is not held");
});

test("repeats requests that waited for a later interval after it, and sends their refusals", async () => {
  const before = await networked();
  // As many connections as one interval has room for, then one query too many.
  for (let index = 0; index < REQUESTS_COUNT_MAX; index++) openConnection(before.guest, before.requests, FIRST + index);
  for (let index = 0; index <= RESOLVES_COUNT_MAX; index++) resolve(before.guest, QUERY + index, `n${index}.example`);
  expect(before.requests.queries).toEqual([]);
  const record = await recordOf(before);
  expect(record.queries).toHaveLength(RESOLVES_COUNT_MAX);

  const requests = new GuestRequests();
  const { guest, release } = resume(record, requests);
  expect(requests.opened).toHaveLength(REQUESTS_COUNT_MAX);
  expect(requests.queries).toEqual([]);
  await until("the next interval begins", () => requests.queries.length === RESOLVES_COUNT_MAX);
  await release();
  expect(codes(guest)).toEqual([[QUERY + RESOLVES_COUNT_MAX, Rcode.serverFailure]]);
});
