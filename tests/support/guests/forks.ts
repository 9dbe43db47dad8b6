import { closeSync, openSync, readdirSync, readFileSync, readSync } from "node:fs";
import { join } from "node:path";
import { copySparse } from "../../../src/system/sparse.ts";
import type { AgentRecord, ProcessRecord } from "../../../src/vm/agent/record.ts";
import { continueCopy } from "../../../src/vm/copy-agent.ts";
import { syncAgent } from "../../../src/vm/templates.ts";
import type { Disk, ForkPoint, Machine, PreparedFork } from "../../../src/vm/vmm.ts";
import type { TestMachine, VmHost } from "./vm.ts";

const STEP_BYTES = 4_194_304;
const PAGE_BYTES = 4096;

/** A machine at one instant, with everything that its copies need. */
export interface Forked extends AsyncDisposable {
  readonly point: ForkPoint;
  readonly record: AgentRecord;
  readonly scratch: string;
}

let scratchesCount = 0;

export function newScratchPath(host: VmHost): string {
  scratchesCount += 1;
  return join(host.directory, `fork-${scratchesCount}`);
}

/** Prepares a fork of a machine with the disks of `VmHost.disks`. */
export async function prepare(machine: Machine, scratchPath: string): Promise<PreparedFork> {
  if (machine.prepareFork === undefined) throw new Error("this VMM cannot fork");
  return await machine.prepareFork({ scratchPath, signal: AbortSignal.timeout(60_000) });
}

/** Forks a machine whose agent is held, and continues its agent. */
export async function fork(host: VmHost, { machine, agent }: TestMachine): Promise<Forked> {
  const scratch = newScratchPath(host);
  await using prepared = await prepare(machine, scratch);
  await agent.hold();
  try {
    const point = await prepared.take();
    return { point, record: agent.record(), scratch, [Symbol.asyncDispose]: () => point[Symbol.asyncDispose]() };
  } finally {
    await syncAgent(agent);
  }
}

/** The disks of a copy, with a scratch of its own. */
export async function disksOfCopy(host: VmHost, scratch: string): Promise<Disk[]> {
  const path = newScratchPath(host);
  await copySparse(scratch, path);
  return [
    { serial: "L00", path: join(host.directory, "base.disk"), readOnly: true },
    { serial: "S", path, readOnly: false },
  ];
}

/** A copy that has not run yet. */
export async function pausedCopy(
  host: VmHost,
  { point, scratch }: Pick<Forked, "point" | "scratch">,
): Promise<Machine> {
  if (host.vmm.cloneFork === undefined) throw new Error("this VMM cannot fork");
  return await host.vmm.cloneFork(point, await disksOfCopy(host, scratch));
}

/** A running copy, whose processes continue with the given receivers. */
export async function copy(
  host: VmHost,
  forked: Omit<Forked, keyof AsyncDisposable>,
  receive: (record: ProcessRecord) => (stream: "stdout" | "stderr", chunk: Uint8Array) => undefined = () => () =>
    undefined,
) {
  const machine = await pausedCopy(host, forked);
  const { agent, processes } = await continueCopy(machine, forked.record, {
    process: (record) => ({ onOutput: receive(record) }),
    network: null,
    signal: AbortSignal.timeout(60_000),
  });
  return { machine, agent, processes, [Symbol.asyncDispose]: () => machine[Symbol.asyncDispose]() };
}

/** The memory of a paused machine of QEMU, as its guest sees it. */
export class GuestMemory implements Disposable {
  readonly #fd: number;
  readonly #address: bigint;
  readonly #sizeBytes: number;

  constructor({ pid, shape }: Machine, address: bigint) {
    this.#fd = openSync(`/proc/${pid}/mem`, "r");
    this.#address = address;
    this.#sizeBytes = shape.memoryBytes;
  }

  /** Numbers of the pages that differ. */
  differences(other: GuestMemory): number[] {
    const different: number[] = [];
    const [own, others] = [Buffer.alloc(STEP_BYTES), Buffer.alloc(STEP_BYTES)];
    for (let offset = 0; offset < this.#sizeBytes; offset += STEP_BYTES) {
      this.#read(own, offset);
      other.#read(others, offset);
      if (own.equals(others)) continue;
      for (let at = 0; at < STEP_BYTES; at += PAGE_BYTES) {
        const end = at + PAGE_BYTES;
        if (!own.subarray(at, end).equals(others.subarray(at, end))) different.push((offset + at) / PAGE_BYTES);
      }
    }
    return different;
  }

  #read(into: Buffer, offset: number): void {
    const position = this.#address + BigInt(offset);
    for (let done = 0; done < into.byteLength; ) {
      const count = readSync(this.#fd, into, done, into.byteLength - done, position + BigInt(done));
      if (count <= 0) throw new Error("the memory of the guest cannot be read");
      done += count;
    }
  }

  [Symbol.dispose](): void {
    closeSync(this.#fd);
  }
}

/** Pids of the running programs that copy memory for this process. */
export function copiers(): number[] {
  return readdirSync("/proc/self/task")
    .flatMap((thread) => readFileSync(`/proc/self/task/${thread}/children`, "utf8").split(" ").filter(Boolean))
    .filter((pid) => readFileSync(`/proc/${pid}/comm`, "utf8") === "copy-memory\n")
    .map(Number);
}
