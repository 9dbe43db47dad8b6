import { join } from "node:path";
import { type Indexing, indexDisk, type LayerParts, type ListedDisk } from "../../storage/layers/staged-layer.ts";
import type { Agent } from "../../vm/agent/agent.ts";
import type { Disk, Machine } from "../../vm/vmm.ts";
import type { GuestTime } from "./guest-time.ts";
import { endedEarly } from "./machine-errors.ts";
import type { ScratchDisks } from "./scratch-disks.ts";

/*
 * Steps that runs, imports, merges and rehearsals have in common. Each works in a machine that the caller owns, within
 * the caller's time budget.
 */

/** A machine and the agent in it. */
export interface Guest {
  readonly machine: Machine;
  readonly agent: Agent;
  /** true: the scratch is frozen already */
  readonly isFrozen?: boolean;
}

/** Disks to attach to a guest. */
export interface GuestDisks {
  /** host paths of the layers' raw disks, the lowest layer first */
  readonly layers: readonly string[];
  /**
   * a disk of `createScratch`. "root": mounted over the layers as the root file system of commands; "bare": mounted
   * next to the layers, as the target of a merge. null: the layers are only read
   */
  readonly scratch: { readonly path: string; readonly use: "root" | "bare" } | null;
}

export const SCRATCH_SERIAL = "S";

/** The serial of a layer, counted from the lowest one. */
export function layerSerial(index: number): string {
  return `L${String(index).padStart(2, "0")}`;
}

/** Creates an empty scratch disk in the machine's directory, and returns its host path. */
export async function createScratch(
  { machine }: Pick<Guest, "machine">,
  scratchDisks: Pick<ScratchDisks, "create">,
  diskBytes: number,
): Promise<string> {
  const path = join(machine.directory, SCRATCH_SERIAL);
  await scratchDisks.create(diskBytes, path);
  return path;
}

/** The disks of a guest, as its machine gets them. */
export function disksOf({ layers, scratch }: GuestDisks): Disk[] {
  const disks = layers.map((path, index): Disk => ({ serial: layerSerial(index), path, readOnly: true }));
  return scratch === null ? disks : [...disks, { serial: SCRATCH_SERIAL, path: scratch.path, readOnly: false }];
}

/**
 * Starts to attach disks and to mount them at once: the agent waits for the disks by itself. Await `attached` first: when
 * it fails, `mounted` fails as a consequence.
 */
export function attachDisks(
  { machine, agent }: Guest,
  { layers, scratch }: GuestDisks,
): { readonly attached: Promise<void>; readonly mounted: Promise<void> } {
  const attached = machine.attach(disksOf({ layers, scratch }));
  const mounted = agent.mount({
    layers: layers.length,
    scratch: scratch?.use === "bare" ? "bare" : scratch !== null,
  });
  // Either may reject while the caller still awaits something else.
  attached.catch(() => undefined);
  mounted.catch(() => undefined);
  return { attached, mounted };
}

/** Names that error messages about the steps of `sealScratch` use. */
export interface ScratchNames {
  /** name of the mounted scratch, such as `the file system of the run` */
  readonly mounted: string;
  /** name of the resulting layer, such as `the new layer` */
  readonly listed: string;
}

/**
 * Freezes the scratch of a guest, writes its index and kills the machine, after which nothing can write to the disk.
 * @param onStep called after each step whose duration is recorded
 * @throws MachineLostError when the machine ended by itself, or lost a write
 */
export async function sealScratch(
  { machine, agent, isFrozen = false }: Guest,
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
  if (!isFrozen) await time.wait(`unmounting ${names.mounted}`, agent.freeze());
  onStep?.("freeze");
  const listed = await indexDisk(time.stream(`listing ${names.listed}`, agent.index("scratch")), files, indexing);
  onStep?.("index");
  const failure = await time.wait("asking for the machine's state", machine.failure());
  if (failure !== null) throw endedEarly(failure);
  await machine.kill();
  return listed;
}
