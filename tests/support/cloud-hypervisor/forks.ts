/** Forks of machines of a stand-in for Cloud Hypervisor. */

import { expect } from "bun:test";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Agent } from "../../../src/vm/agent/agent.ts";
import type { AgentRecord } from "../../../src/vm/agent/record.ts";
import { syncAgent } from "../../../src/vm/templates.ts";
import type { Disk, ForkPoint, Machine } from "../../../src/vm/vmm.ts";
import { greeted } from "../guests/vm.ts";
import { until } from "../waiting.ts";
import { blankDisks, COUNTING, SHAPE, type StandInHost } from "./cloud-hypervisor.ts";

const NEVER = new AbortController().signal;

/** Text at the start of a disk. */
export const content = (path: string): string => readFileSync(path, "latin1").replace(/\0+$/, "");

let count = 0;
export function newPath(host: StandInHost, name: string): string {
  count += 1;
  return join(host.directory, `${name}-${count}`);
}

/** A machine with a layer and a scratch, in which a command counts. */
export async function counting(host: StandInHost) {
  const machine = await host.vmm.boot(SHAPE);
  const agent = await greeted(machine);
  await machine.attach(blankDisks(host, machine, 1));
  await agent.mount({ layers: 1, scratch: true });
  writeFileSync(join(machine.directory, "S"), "scratch", { flag: "r+" });
  const output = { text: "" };
  const handle = agent.exec(COUNTING, (_stream, chunk) => {
    output.text += Buffer.from(chunk).toString();
    return undefined;
  });
  handle.exit.catch(() => undefined);
  await until("it counts", () => output.text.includes("\n3\n"));
  return { machine, agent, output, [Symbol.asyncDispose]: () => machine[Symbol.asyncDispose]() };
}

/** A machine at one instant, with what its copies need. */
export interface Forked extends AsyncDisposable {
  readonly point: ForkPoint;
  readonly record: AgentRecord;
  readonly scratch: string;
}

interface ForkedMachine {
  readonly machine: Machine;
  readonly agent: Agent;
}

/** Forks a machine whose agent is held, and continues its agent. */
export async function fork(host: StandInHost, { machine, agent }: ForkedMachine): Promise<Forked> {
  const scratch = newPath(host, "scratch");
  const prepared = await machine.prepareFork?.({ scratchPath: scratch, signal: NEVER });
  if (prepared === undefined) throw new Error("it cannot fork");
  await using _prepared = prepared;
  await agent.hold();
  try {
    const point = await prepared.take();
    return { point, record: agent.record(), scratch, [Symbol.asyncDispose]: () => point[Symbol.asyncDispose]() };
  } finally {
    await syncAgent(agent);
  }
}

/** The disks of a copy of a machine of `counting`. */
export const disksOf = (host: StandInHost, scratch: string): Disk[] => [
  { serial: "S", path: scratch, readOnly: false },
  { serial: "L00", path: join(host.directory, "L00"), readOnly: true },
];

/** A copy that has not run yet. */
export async function copyOf(host: StandInHost, point: ForkPoint, scratch: string): Promise<Machine> {
  const copy = await host.vmm.cloneFork?.(point, disksOf(host, scratch));
  if (copy === undefined) throw new Error("it cannot copy");
  return copy;
}

/** A scratch of its own for a copy. */
export function scratchCopy(host: StandInHost, scratch: string): string {
  const path = newPath(host, "copy");
  writeFileSync(path, readFileSync(scratch));
  return path;
}

/** Checks that no machine and no fork point has left anything. */
export async function nothingIsLeft(host: StandInHost): Promise<void> {
  expect(readdirSync(host.vmsDirectory)).toEqual([]);
  expect(await host.cgroups.list()).toEqual([]);
}
