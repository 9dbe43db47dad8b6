/** What conversations about connections and names of a guest are made of. */
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

/** A network that notes what it is asked; the test answers. */
export class Asked {
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
  const asked = new Asked();
  const given = agent.network(asked);
  const { session } = await guest.frame(HostFrame.network);
  guest.send(AgentFrame.done, session, done());
  await given;
  return { guest, agent, asked };
}

export const openName = (name: string, port = 443) =>
  Buffer.concat([packIntegers([16, port], [16, AddressKind.name]), text(name)]);
export const openAddress = (kind: number, bytes: readonly number[], port = 80) =>
  Buffer.concat([packIntegers([16, port], [16, kind]), Buffer.from(bytes)]);

/** Opens a connection of the guest in an interval that has room for it. */
export async function askLater(guest: ScriptedAgent, asked: Asked, id: number): Promise<Opened> {
  const before = asked.opened.length;
  guest.send(AgentFrame.netOpen, id, openName("deb.example"));
  await until("the host is asked", () => asked.opened.length > before);
  return asked.opened[before] as Opened;
}

/** Opens a connection of the guest, which the host has not answered. */
export function ask(guest: ScriptedAgent, asked: Asked, id = FIRST): Opened {
  guest.send(AgentFrame.netOpen, id, openName("deb.example"));
  const opened = asked.opened.at(-1);
  if (opened === undefined) throw new Error("the host was not asked");
  return opened;
}

export async function accepted() {
  const { guest, agent, asked } = await networked();
  const { connection } = ask(guest, asked);
  connection.accept();
  await guest.frame(HostFrame.netAccept);
  return { guest, agent, asked, connection };
}

export const typesOf = (guest: ScriptedAgent) => guest.frames.slice(1).map(({ type }) => type);
export const broken = async (agent: Agent) => expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
