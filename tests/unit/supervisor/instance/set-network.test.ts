/** The network of a running instance, whose agent the test plays. */

import { expect, test } from "bun:test";
import type { OperationId } from "../../../../src/domain/ids.ts";
import type { NetworkRequest } from "../../../../src/domain/network.ts";
import type { EventLog } from "../../../../src/storage/events/event-logs.ts";
import type { RunningInstance } from "../../../../src/supervisor/instance/running-instance.ts";
import { RunningInstances } from "../../../../src/supervisor/instance/running-instances.ts";
import { TimeLimit } from "../../../../src/supervisor/instance/time-limit.ts";
import { AgentFrame, HostFrame } from "../../../../src/vm/agent/protocol.ts";
import { failureOf } from "../../../support/failures.ts";
import { done, openAgent, problem } from "../../../support/guests/agent-script.ts";
import { quietNetwork } from "../../../support/instance-network.ts";
import { rule } from "../../../support/network-scene.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as OperationId;
const POLICY: NetworkRequest = { allow: [rule("a.example")], tls: "sni", record: false };
const OTHER: NetworkRequest = { ...POLICY, allow: [rule("b.example")] };

function scene() {
  const instances = new RunningInstances();
  const network = quietNetwork();
  const limit = new TimeLimit(1000);
  const run = instances.open(ID, { limit, hostname: "box", events: {} as EventLog, network });
  const { guest, agent } = openAgent();
  const machine = { exited: new Promise(() => undefined), stuck: async () => null, failure: async () => null };
  const instance = { agent, machine, hasEnded: false, listen: () => undefined };
  const enter = () => run.enter(instance as unknown as RunningInstance);
  const flags = () =>
    guest.frames.filter(({ type }) => type === HostFrame.network).map(({ payload }) => payload.readUInt32LE());
  const answer = async () => guest.send(AgentFrame.done, (await guest.frame(HostFrame.network)).session, done());
  return { instances, network, instance, enter, guest, flags, answer };
}

test("the guest gets a frame when it gets or loses a network, and none for another policy", async () => {
  const { instances, network, enter, flags, answer } = scene();
  enter();
  const given = instances.setNetwork(ID, POLICY);
  await answer();
  expect([await given, await instances.setNetwork(ID, OTHER), flags()]).toEqual([true, true, [1]]);
  expect([network.policy, instances.hasHadNetwork(ID)]).toEqual([OTHER, true]);
  const removal = instances.setNetwork(ID, null);
  expect(network.policy).toBeNull();
  await answer();
  expect([await removal, flags(), instances.hasHadNetwork(ID)]).toEqual([true, [1, 0], true]);
});

test("an instance without a machine gets it with its machine, and one that has ended gets none", async () => {
  const { instances, network, instance, enter, flags } = scene();
  expect([await instances.setNetwork(ID, POLICY), network.policy]).toEqual([true, POLICY]);
  instance.hasEnded = true;
  enter();
  expect([await instances.setNetwork(ID, null), network.policy, flags()]).toEqual([false, POLICY, []]);
  const other = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c16" as OperationId;
  expect([await instances.setNetwork(other, null), instances.hasHadNetwork(other)]).toEqual([false, false]);
});

test("a guest that cannot have a network keeps none", async () => {
  const { instances, network, enter, guest } = scene();
  enter();
  const refused = failureOf(instances.setNetwork(ID, POLICY));
  const { session } = await guest.frame(HostFrame.network);
  guest.send(AgentFrame.error, session, problem(38, "programs of the network"));
  expect(String(await refused)).toContain("programs of the network");
  expect(network.policy).toBeNull();
  expect(network.audit()?.policies).toMatchObject([
    { network: "none" },
    { network: { allow: POLICY.allow, tls: "sni" } },
    { network: "none" },
  ]);
});

test("a guest that does not believe that it has lost its network has lost it", async () => {
  const { instances, network, enter, guest, answer } = scene();
  enter();
  const given = instances.setNetwork(ID, POLICY);
  await answer();
  await given;
  const removal = instances.setNetwork(ID, null);
  const { session } = await guest.frame(HostFrame.network);
  guest.send(AgentFrame.error, session, problem(22, "no"));
  expect([await removal, network.policy]).toEqual([true, null]);
});
