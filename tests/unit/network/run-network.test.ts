/** The network of a run whose machine is a scripted agent. */

import { expect, test } from "bun:test";
import { mkdirSync, rmSync } from "node:fs";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { AccountId, LayerId, OperationId } from "../../../src/domain/ids.ts";
import { NO_DEFAULTS } from "../../../src/domain/image-defaults.ts";
import type { NetworkRequest } from "../../../src/domain/network.ts";
import { createLog } from "../../../src/log.ts";
import { createMetrics } from "../../../src/metrics.ts";
import { EventFile } from "../../../src/storage/events/event-file.ts";
import { EventLogs } from "../../../src/storage/events/event-logs.ts";
import { IndexMemory } from "../../../src/storage/index/index-memory.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { execute } from "../../../src/supervisor/instance/execute.ts";
import { RunningInstances } from "../../../src/supervisor/instance/running-instances.ts";
import type { ReadyMachine } from "../../../src/supervisor/machines/machine-source.ts";
import type { ScratchDisks } from "../../../src/supervisor/machines/scratch-disks.ts";
import type { InstanceNetwork } from "../../../src/supervisor/network/instance-network.ts";
import { InstanceNetworks } from "../../../src/supervisor/network/instance-networks.ts";
import { Laps } from "../../../src/supervisor/operations/laps.ts";
import { wallClock } from "../../../src/system/wall-clock.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame, SESSION_GUEST_BIT } from "../../../src/vm/agent/protocol.ts";
import type { MachineExit } from "../../../src/vm/vmm.ts";
import { allEvents } from "../../support/events.ts";
import { done, exitPayload, openAgent, text } from "../../support/guests/agent-script.ts";
import type { ScriptedAgent } from "../../support/guests/scripted-peer.ts";
import { StandInGate } from "../../support/guests/stand-in-gate.ts";
import { testDirectory } from "../../support/images/layer-files.ts";
import { NETWORK_SETTINGS, rule } from "../../support/network-scene.ts";
import { turns, until } from "../../support/waiting.ts";

const ID = "01980000-0000-7000-8000-000000000000" as OperationId;
const never = new AbortController().signal;
const REQUEST: NetworkRequest = { allow: [rule("*.example")], tls: "sni", record: false };

/** Runs a command; `play` acts as the guest from the command's start to its end. */
async function run(
  request: NetworkRequest | null,
  play: (guest: ScriptedAgent, network: InstanceNetwork) => Promise<void>,
) {
  const directory = testDirectory("run-network");
  using _directory = { [Symbol.dispose]: () => rmSync(directory, { recursive: true }) };
  const layout = dataLayout(directory);
  for (const path of [layout.tmp, layout.events]) mkdirSync(path, { recursive: true });
  const { guest, agent } = openAgent();
  const exited = Promise.withResolvers<MachineExit>();
  const kill = async () => {
    guest.channel.deliver(null);
    exited.resolve({ reason: "killed", detail: "" } as MachineExit);
  };
  const machine = {
    ...{ directory: "/tmp", attach: async () => undefined, exited: exited.promise, kill, console: async () => "" },
    ...{ stuck: async () => null, failure: async () => null },
    cgroup: { stats: async () => ({ cpuTimeMs: 7, memoryPeakBytes: 8 }) },
  };
  const ready = { machine, agent, isolation: "vm", [Symbol.asyncDispose]: kill } as unknown as ReadyMachine;
  const take = async () => ready;
  const lines: Record<string, unknown>[] = [];
  const log = createLog({ level: "info", format: "json", write: (line) => void lines.push(JSON.parse(line)) });
  const metrics = createMetrics();
  const gate = new StandInGate();
  const networks = new InstanceNetworks({ gate, settings: NETWORK_SETTINGS, log, clock: Date.now, metrics });
  using layers = new LayerStore({ layout, chainOf: () => ["a" as LayerId] });
  using image = layers.open("a" as LayerId);
  using events = new EventLogs(layout, new Accounts(), wallClock()).open(ID);
  await using network = networks.open({ id: ID, accountId: "a" as AccountId }, request, events);
  const submission = {
    ...{ imageId: "i", argv: ["true"], env: {}, cwd: "/", timeoutSeconds: 60, files: [], truncateOutputAtBytes: 1 },
    ...{ uid: 0, gid: 0, stdinOpen: false, terminal: null, stdin: null, hostname: null, disposable: true },
    ...{ resources: { vcpus: 1, memoryBytes: 1, diskBytes: 1 }, requestedAt: null },
  } as unknown as Parameters<typeof execute>[1]["submission"];
  const tools = {
    ...{ layout, layers, log, events, network, laps: new Laps(), instances: new RunningInstances() },
    ...{ machines: { take, takeUnpooled: take, launcher: async () => "/launch" }, indexMemory: new IndexMemory() },
    ...{
      scratchDisks: { create: async () => undefined } as unknown as ScratchDisks,
      diskUse: { add: () => undefined },
    },
    uninvited: (count: number) => networks.uninvited(ID, count),
  };
  const running = execute(
    tools,
    { operationId: ID, submission, image, parentIndex: "/index", defaults: NO_DEFAULTS },
    never,
  );
  const error = running.then(
    () => null,
    (problem: Error) => problem,
  );
  guest.send(AgentFrame.done, (await guest.frame(HostFrame.mount)).session, done());
  if (request !== null) guest.send(AgentFrame.done, (await guest.frame(HostFrame.network)).session, done());
  const { session } = await guest.frame(HostFrame.execOpen);
  guest.send(AgentFrame.started, session, packIntegers([32, 1]));
  await play(guest, network);
  guest.send(AgentFrame.exit, session, exitPayload(0));
  const failed = await error;
  await network[Symbol.asyncDispose]();
  await events.end();
  using file = EventFile.open(events.path);
  const entries = file === null ? [] : await Array.fromAsync(allEvents(file));
  const types = entries.map(({ type, payload }) => (type === "network" ? `network ${Buffer.from(payload)}` : type));
  const changes = entries.flatMap(({ type, payload }) =>
    type === "network_policy" ? [JSON.parse(Buffer.from(payload).toString())] : [],
  );
  const denied = lines.filter(({ message }) => message === "an instance was denied a connection");
  const exposition = await metrics.registry.render();
  return { guest, error: failed, audit: network.audit(), types, changes, lines, denied, gate, exposition };
}

const openName = (name: string, port = 80) => [packIntegers([16, port], [16, 0]), text(name)];

test("a run sends its guest the network right after the disks, and logs the first connection to each host", async () => {
  const ended = await run(REQUEST, async (guest) => {
    for (const id of [0, 1]) guest.send(AgentFrame.netOpen, SESSION_GUEST_BIT + id, ...openName("a.example"));
    for (const id of [2, 3]) guest.send(AgentFrame.netOpen, SESSION_GUEST_BIT + id, ...openName("a.com", 22));
    await turns();
    // The command's end kills its programs.
    for (const id of [0, 1]) guest.send(AgentFrame.netReset, SESSION_GUEST_BIT + id);
  });
  expect(ended.error).toBeNull();
  expect(ended.guest.frames.slice(0, 3).map(({ type }) => type)).toEqual([
    ...[HostFrame.mount, HostFrame.network, HostFrame.execOpen],
  ]);
  expect(ended.types).toEqual([
    ...["init", "spawn", 'network {"host":"a.com","port":22,"verdict":"denied"}'],
    ...['network {"host":"a.example","port":80,"verdict":"allowed"}', "exit", "shutdown"],
  ]);
  expect(ended.denied).toMatchObject([{ level: "info", operation: ID, host: "a.com", port: 22, verdict: "denied" }]);
  expect(ended.audit?.entries.map(({ verdict, connections }) => [verdict, connections])).toEqual([
    ["denied", 2],
    ["allowed", 2],
  ]);
  expect(ended.gate.connections.map(({ wasReset }) => wasReset)).toEqual([true, true]);
  expect(ended.exposition).toContain('coppice_egress_connections_total{verdict="denied"} 2\n');
  expect(ended.exposition).toContain('coppice_egress_connections_total{verdict="allowed"} 2\n');
  expect(ended.exposition).toContain("coppice_egress_open 0\n");
});

test("a guest that breaks the rules of network frames ends its run, and its audit is stored", async () => {
  const ended = await run(REQUEST, async (guest) => {
    guest.send(AgentFrame.netOpen, SESSION_GUEST_BIT, ...openName("a.example"));
    await turns();
    guest.send(AgentFrame.netData, SESSION_GUEST_BIT, Buffer.alloc(65_536));
    guest.send(AgentFrame.netData, SESSION_GUEST_BIT, Buffer.alloc(65_536));
    guest.send(AgentFrame.netData, SESSION_GUEST_BIT, Buffer.alloc(65_536));
  });
  expect(ended.error).toMatchObject({ name: "ApiError" });
  expect(ended.types.at(-1)).toBe("shutdown");
  expect(ended.audit?.entries).toMatchObject([{ host: "a.example", verdict: "allowed", connections: 1 }]);
  expect(ended.gate.connections.map(({ wasReset }) => wasReset)).toEqual([true]);
});

test("a run without a network opens no connections, and reports an agent that tries to", async () => {
  const ended = await run(null, async (guest) => {
    for (const id of [0, 1]) guest.send(AgentFrame.netOpen, SESSION_GUEST_BIT + id, ...openName("a.example"));
    guest.send(AgentFrame.resolve, 1, packIntegers([16, 1]), text("a.example"));
    await turns();
  });
  expect(ended.error).toBeNull();
  expect(ended.guest.frames.some(({ type }) => type === HostFrame.network)).toBe(false);
  expect(ended.gate.connections.length + ended.gate.resolved.length).toBe(0);
  expect(ended.types).toEqual(["init", "spawn", "exit", "shutdown"]);
  expect(ended.lines).toMatchObject([{ level: "warn", operation: ID, count: 2 }]);
  expect(ended.exposition).toContain('coppice_egress_connections_total{verdict="denied"} 2\n');
});

test("a guest whose connections are all denied adds a bounded number of lines to the log", async () => {
  const ended = await run(REQUEST, async (guest) => {
    for (let id = 0; id < 300; id++) guest.send(AgentFrame.netOpen, SESSION_GUEST_BIT + id, ...openName(`h${id}.com`));
    const refusals = () => guest.frames.filter(({ type }) => type === HostFrame.netRefuse);
    await until("all are refused", () => refusals().length === 300);
  });
  expect(ended.denied).toHaveLength(100);
  expect(ended.audit?.entries).toHaveLength(300);
});

test("a change of the network is an event with both policies, and a line of the log", async () => {
  const ended = await run(REQUEST, async (guest, network) => {
    guest.send(AgentFrame.netOpen, SESSION_GUEST_BIT, ...openName("a.example"));
    await turns();
    network.change(null);
    guest.send(AgentFrame.netOpen, SESSION_GUEST_BIT + 1, ...openName("a.example"));
    await turns();
  });
  expect(ended.error).toBeNull();
  expect(ended.types).toEqual([
    ...["init", "spawn", 'network {"host":"a.example","port":80,"verdict":"allowed"}', "network_policy"],
    ...['network {"host":"a.example","port":80,"verdict":"denied"}', "exit", "shutdown"],
  ]);
  const from = { network: { allow: REQUEST.allow, tls: "sni" } };
  expect(ended.changes).toEqual([{ from, to: { network: "none" }, connections_reset: 1 }]);
  expect(ended.lines).toMatchObject([{ level: "info", operation: ID, connections_reset: 1 }, { verdict: "denied" }]);
  expect(ended.audit?.policies).toMatchObject([{ ...from, connections_reset: 0 }, { network: "none" }]);
});
