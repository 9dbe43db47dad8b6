/** Parts of conversations about a guest's connections and names. */
import { expect } from "bun:test";
import type { Destination } from "../../../src/domain/network.ts";
import type { Agent } from "../../../src/vm/agent/agent.ts";
import type { GuestConnection } from "../../../src/vm/agent/connection.ts";
import { AgentProtocolError } from "../../../src/vm/agent/errors.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import type { GuestQuery } from "../../../src/vm/agent/guest-network.ts";
import { AddressKind, AgentFrame, HostFrame, SESSION_GUEST_BIT } from "../../../src/vm/agent/protocol.ts";
import { until } from "../waiting.ts";
import { done, failure, openAgent, text } from "./agent-script.ts";
import type { ScriptedAgent } from "./scripted-peer.ts";

/** Id of the first session that a guest opens. */
export const FIRST = SESSION_GUEST_BIT;

export interface Opened {
  readonly destination: Destination;
  readonly connection: GuestConnection;
}

/** A network that records a guest's requests, which the test answers. */
export class GuestRequests {
  readonly opened: Opened[] = [];
  readonly queries: (GuestQuery & { readonly answer: PromiseWithResolvers<number> })[] = [];

  open(destination: Destination, connection: GuestConnection): void {
    this.opened.push({ destination, connection });
  }

  resolve(query: GuestQuery): Promise<number> {
    const answer = Promise.withResolvers<number>();
    this.queries.push({ ...query, answer });
    return answer.promise;
  }
}

export async function networked() {
  const { guest, agent } = openAgent();
  const requests = new GuestRequests();
  const configured = agent.network(requests);
  const { session } = await guest.frame(HostFrame.network);
  guest.send(AgentFrame.done, session, done());
  await configured;
  return { guest, agent, requests };
}

export const openName = (name: string, port = 443) =>
  Buffer.concat([packIntegers([16, port], [16, AddressKind.name]), text(name)]);
export const openAddress = (kind: number, bytes: readonly number[], port = 80) =>
  Buffer.concat([packIntegers([16, port], [16, kind]), Buffer.from(bytes)]);

/** Opens a connection of the guest in an interval that has room for it. */
export async function openConnectionLater(guest: ScriptedAgent, requests: GuestRequests, id: number): Promise<Opened> {
  const before = requests.opened.length;
  guest.send(AgentFrame.netOpen, id, openName("deb.example"));
  await until("the host gets the request", () => requests.opened.length > before);
  return requests.opened[before] as Opened;
}

/** Opens a connection of the guest, which the host does not answer. */
export function openConnection(guest: ScriptedAgent, requests: GuestRequests, id = FIRST): Opened {
  guest.send(AgentFrame.netOpen, id, openName("deb.example"));
  const opened = requests.opened.at(-1);
  if (opened === undefined) throw new Error("the host got no request");
  return opened;
}

export async function accepted() {
  const { guest, agent, requests } = await networked();
  const { connection } = openConnection(guest, requests);
  connection.accept();
  await guest.frame(HostFrame.netAccept);
  return { guest, agent, requests, connection };
}

export const typesOf = (guest: ScriptedAgent) => guest.frames.slice(1).map(({ type }) => type);
export const broken = async (agent: Agent) => expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
