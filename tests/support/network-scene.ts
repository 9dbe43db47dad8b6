import type { NetworkAudit, NetworkRequest, NetworkRule, NetworkVerdict } from "../../src/domain/network.ts";
import { InstanceNetwork, type NetworkSettings } from "../../src/supervisor/network/instance-network.ts";
import type { Agent } from "../../src/vm/agent/agent.ts";
import { packIntegers } from "../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame, SESSION_GUEST_BIT } from "../../src/vm/agent/protocol.ts";
import { done, openAgent, text } from "./guests/agent-script.ts";
import type { ScriptedAgent } from "./guests/scripted-peer.ts";
import { type OuterConnection, StandInGate } from "./guests/stand-in-gate.ts";
import { turns } from "./waiting.ts";

export const rule = (host: string, ports: NetworkRule["ports"] = [80, 443]): NetworkRule => ({ host, ports });
const REQUEST: NetworkRequest = { allow: [rule("*.example"), rule("192.0.2.0/24", [5432])], tls: "sni", record: false };
export const NETWORK_SETTINGS: NetworkSettings = {
  allow: [rule("*.example"), rule("192.0.2.0/24", "*"), rule("*.org")],
  private: { names: [rule("db.example", "*")], ranges: ["192.0.2.0/24"] },
  connectionsMax: 256,
  opensPerSecond: 50,
  bytesMax: null,
  idleMs: 600_000,
};

/** The network of an instance, whose agent and outside are played by the test. */
export class NetworkScene implements AsyncDisposable {
  readonly gate = new StandInGate();
  readonly events: string[] = [];
  readonly verdicts: NetworkVerdict[] = [];
  readonly moved = { sent: 0, received: 0 };
  readonly failures: unknown[] = [];
  openCount = 0;
  nowMs = 0;
  readonly network: InstanceNetwork;
  readonly guest: ScriptedAgent;
  readonly agent: Agent;
  #sessions = 0;

  private constructor(
    policy: NetworkRequest | null,
    settings: NetworkSettings,
    { guest, agent }: ReturnType<typeof openAgent>,
  ) {
    this.guest = guest;
    this.agent = agent;
    this.gate.names = new Set(["a.example", "db.example"]);
    this.network = new InstanceNetwork({
      gate: this.gate,
      settings,
      policy,
      account: "a",
      clock: () => 1_000_000 + this.nowMs,
      now: () => this.nowMs,
      listener: {
        counted: (verdict) => this.verdicts.push(verdict),
        first: ({ host, port, verdict }) => this.events.push(`${verdict} ${host}:${port}`),
        changed: ({ resetCount }) => this.events.push(`changed, ${resetCount} reset`),
        moved: (direction, bytes) => {
          this.moved[direction] += bytes;
        },
        open: (change) => {
          this.openCount += change;
        },
        failed: (error) => this.failures.push(error),
      },
    });
  }

  static async open(
    policy: Partial<NetworkRequest> | null = {},
    settings: Partial<NetworkSettings> = {},
  ): Promise<NetworkScene> {
    const opened = openAgent();
    const { guest, agent } = opened;
    const scene = new NetworkScene(policy && { ...REQUEST, ...policy }, { ...NETWORK_SETTINGS, ...settings }, opened);
    if (policy === null) return scene;
    const configured = agent.network(scene.network);
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.network)).session, done());
    await configured;
    return scene;
  }

  /** Opens a connection as the guest does. */
  ask(host: string | readonly number[], port = 80): number {
    const id = SESSION_GUEST_BIT + this.#sessions++;
    const isName = typeof host === "string";
    const head = packIntegers([16, port], [16, isName ? 0 : host.length === 4 ? 4 : 6]);
    this.guest.send(AgentFrame.netOpen, id, head, isName ? text(host) : Buffer.from(host));
    return id;
  }

  /** The code of the host's answer to a query for a name. */
  async resolve(name: string): Promise<number> {
    const id = this.#sessions++;
    this.guest.send(AgentFrame.resolve, id, packIntegers([16, 1]), text(name));
    await turns();
    const answer = this.guest.frames.find(({ type, session }) => type === HostFrame.resolved && session === id);
    return answer?.payload.readUInt32LE() ?? -1;
  }

  /** Opens a connection that the host accepts. */
  async connect(
    host: string | readonly number[] = "a.example",
    port = 80,
  ): Promise<{ id: number; outer: OuterConnection }> {
    const id = this.ask(host, port);
    await turns();
    const outer = this.gate.connections.at(-1);
    if (outer === undefined || this.answer(id) !== "accepted") throw new Error("it was not accepted");
    return { id, outer };
  }

  answer(id: number): number | "accepted" | null {
    const frame = this.guest.frames.find(
      ({ type, session }) => session === id && (type === HostFrame.netAccept || type === HostFrame.netRefuse),
    );
    if (frame === undefined) return null;
    return frame.type === HostFrame.netAccept ? "accepted" : frame.payload.readUInt32LE();
  }

  typesOf(id: number): number[] {
    return this.guest.frames.filter(({ session }) => session === id).map(({ type }) => type);
  }

  received(id: number): string {
    const frames = this.guest.frames.filter(({ type, session }) => session === id && type === HostFrame.netData);
    return Buffer.concat(frames.map(({ payload }) => payload)).toString();
  }

  /** @throws Error when the instance has had no network */
  audit(): NetworkAudit {
    const audit = this.network.audit();
    if (audit === null) throw new Error("no audit");
    return audit;
  }

  entries(): string[] {
    return this.audit().entries.map(
      ({ host, port, verdict, connections, bytes_sent, bytes_received }) =>
        `${verdict} ${host}:${port} ${connections} ${bytes_sent}/${bytes_received}`,
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.network[Symbol.asyncDispose]();
  }
}
