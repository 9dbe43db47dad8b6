import { join } from "node:path";
import { type Indexing, indexDisk, type LayerParts, type ListedDisk } from "../../storage/layers/staged-layer.ts";
import type { Agent } from "../../vm/agent/agent.ts";
import type { Disk, Machine } from "../../vm/vmm.ts";
import { endedEarly } from "../machines/machines.ts";
import type { ScratchDisks } from "../machines/scratch-disks.ts";
import type { GuestTime } from "./guest-time.ts";

/*
 * Steps that runs, imports, merges and rehearsals have in common. Each is taken in a machine that the caller owns, and
 * bounded by the time that the caller allows.
 */

/** A machine and the agent in it. */
export interface Guest {
  readonly machine: Machine;
  readonly agent: Agent;
}

/** What a guest is to see. */
export interface GuestDisks {
  /** raw disks of layers on the host, the lowest first */
  readonly layers: readonly string[];
  /**
   * a disk of `stampScratch` on top of them, as the root of commands, or "bare", beside the layers, for what they are
   * merged into; null: the layers are only read
   */
  readonly scratch: { readonly path: string; readonly use: "root" | "bare" } | null;
}

const SCRATCH_SERIAL = "S";

/** Writes an empty scratch disk into the machine's directory, and gives its path on the host. */
export async function stampScratch(
  { machine }: Pick<Guest, "machine">,
  scratchDisks: Pick<ScratchDisks, "stamp">,
  diskBytes: number,
): Promise<string> {
  const path = join(machine.directory, SCRATCH_SERIAL);
  await scratchDisks.stamp(diskBytes, path);
  return path;
}

/**
 * Begins to attach disks and to mount them, in one burst: the agent waits for the disks by itself. `attached` is to be
 * awaited first, because the failure of the other may follow from that of it.
 */
export function attachDisks(
  { machine, agent }: Guest,
  { layers, scratch }: GuestDisks,
): { readonly attached: Promise<void>; readonly mounted: Promise<void> } {
  const disks: Disk[] = layers.map((path, index) => ({
    serial: `L${String(index).padStart(2, "0")}`,
    path,
    readOnly: true,
  }));
  if (scratch !== null) disks.push({ serial: SCRATCH_SERIAL, path: scratch.path, readOnly: false });
  const attached = machine.attach(disks);
  const mounted = agent.mount({
    layers: layers.length,
    scratch: scratch?.use === "bare" ? "bare" : scratch !== null,
  });
  // Who waits for the first does not wait for the second yet.
  attached.catch(() => undefined);
  mounted.catch(() => undefined);
  return { attached, mounted };
}

/** Names that a person may read of the steps of `endScratch`. */
export interface ScratchNames {
  /** what is unmounted, such as `the file system of the run` */
  readonly mounted: string;
  /** what is listed, such as `the new layer` */
  readonly listed: string;
}

/**
 * Makes the scratch of a guest unchanging, writes its index and ends the machine: nothing can write to the disk then.
 * @param onStep is told of each step that took time
 * @throws MachineLostError when the machine ended by itself, or lost a write
 */
export async function endScratch(
  { machine, agent }: Guest,
  files: LayerParts,
  {
    time,
    names,
    indexing,
    onStep,
  }: {
    readonly time: GuestTime;
    readonly names: ScratchNames;
    readonly indexing: Indexing;
    readonly onStep?: (step: "freeze" | "index") => void;
  },
): Promise<ListedDisk> {
  await time.wait(`unmounting ${names.mounted}`, agent.freeze());
  onStep?.("freeze");
  const listed = await indexDisk(time.stream(`listing ${names.listed}`, agent.index("scratch")), files, indexing);
  onStep?.("index");
  const failure = await time.wait("asking for the machine's state", machine.failure());
  if (failure !== null) throw endedEarly(failure);
  await machine.kill();
  return listed;
}
