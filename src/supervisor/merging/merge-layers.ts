import { join } from "node:path";
import type { Log } from "../../log.ts";
import type { IndexMemory } from "../../storage/index/index-memory.ts";
import type { LayerChain, LayerStore } from "../../storage/layers/layer-store.ts";
import type { Indexing, StagedLayer } from "../../storage/layers/staged-layer.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { scratchDirectory } from "../../system/scratch.ts";
import type { MachineShape } from "../../vm/vmm.ts";
import type { DiskGuard, DiskUse } from "../disk-guard.ts";
import type { DisksSize } from "../machines/guest-budgets.ts";
import { mergeMs } from "../machines/guest-budgets.ts";
import { GuestTime } from "../machines/guest-time.ts";
import { inMachine, type MachineSource, withReplacement } from "../machines/machine-source.ts";
import type { ScratchDisks } from "../machines/scratch-disks.ts";
import { attachDisks, createScratch, type Guest, sealScratch } from "../machines/steps.ts";

export interface MergeTools {
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly machines: MachineSource;
  readonly scratchDisks: ScratchDisks;
  readonly diskGuard: Pick<DiskGuard, "watch">;
  /** the memory budget that all index writers share */
  readonly indexMemory: IndexMemory;
  readonly log: Log;
  /** shape of the machine that merges */
  readonly shape: MachineShape;
}

export interface MergeJob {
  readonly layers: LayerChain;
  /** size of all layers together */
  readonly size: DisksSize;
  /** size of the disk that they are merged into */
  readonly diskBytes: number;
  /**
   * Called with each machine of the merge. `setCpuWeight` sets the machine's share of contended processors, 1 to 10000;
   * until then it has the weight of any machine.
   */
  readonly onMachine?: (setCpuWeight: (cpuWeight: number) => void) => void;
}

/**
 * Merges layers into one that replaces them. It works in a separate machine, because only a guest's kernel may
 * read file systems that guests wrote. A machine that ends early is replaced once. The machine is gone when this returns
 * or throws.
 * @throws ApiError that names the cause when the guest or the host failed; the reason of `signal`
 */
export function mergeLayers(tools: MergeTools, job: MergeJob, signal: AbortSignal): Promise<StagedLayer> {
  const { log } = tools;
  return withReplacement(() => mergeOnce(tools, job, signal), { goal: "the layers were merged", log });
}

async function mergeOnce(tools: MergeTools, job: MergeJob, signal: AbortSignal): Promise<StagedLayer> {
  using diskUse = tools.diskGuard.watch({ name: `merge of ${job.layers.ids.length} layers`, isExpendable: true });
  const bounded = AbortSignal.any([signal, diskUse.full]);
  await using ready = await tools.machines.takeUnpooled(tools.shape, bounded);
  job.onMachine?.((cpuWeight) => ready.machine.cgroup.setCpuWeight(cpuWeight));
  return await inMachine(ready, bounded, () => mergeIn(ready, { ...tools, diskUse, signal: bounded }, job));
}

async function mergeIn(
  guest: Guest,
  tools: MergeTools & Indexing & { readonly diskUse: DiskUse },
  job: MergeJob,
): Promise<StagedLayer> {
  await using directory = await scratchDirectory(tools.layout.tmp, "merge-");
  const diskPath = await createScratch(guest, tools.scratchDisks, job.diskBytes);
  const files = { diskPath, indexPath: join(directory.path, "index") };
  for (const path of Object.values(files)) tools.diskUse.add(path);
  const layers = job.layers.files.map(({ disk }) => disk);
  const { attached, mounted } = attachDisks(guest, { layers, scratch: { path: diskPath, use: "bare" } });
  const time = new GuestTime({ allowedMs: () => mergeMs(job.size) });
  await time.wait("attaching the layers", attached);
  await time.wait("mounting the layers", mounted);
  await time.wait("merging the layers", guest.agent.merge());
  const names = { mounted: "the merged layer", listed: "the merged layer" };
  const listed = await sealScratch(guest, files, { time, names, indexing: tools });
  return await tools.layers.publish(files, listed);
}
