import { join } from "node:path";
import type { LayerId } from "../../domain/ids.ts";
import type { Log } from "../../log.ts";
import type { IndexMemory } from "../../storage/index/index-memory.ts";
import { layerPath } from "../../storage/layers/layers.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { scratchDirectory } from "../../system/scratch.ts";
import type { MachineShape } from "../../vm/vmm.ts";
import type { DiskGuard, DiskUse } from "../disk-guard.ts";
import { type Indexing, indexDisk, type StagedLayer, stageLayer } from "../instance/capture.ts";
import { layerDisks } from "../instance/execute.ts";
import { mergeMs } from "../instance/guest-budgets.ts";
import { GuestTime } from "../instance/guest-time.ts";
import { endedEarly, inMachine, type MachineSource, type ReadyMachine, withReplacement } from "../machines/machines.ts";
import type { ScratchDisks } from "../machines/scratch-disks.ts";
import type { MergeSize } from "./merge-policy.ts";

export interface MergeTools {
  readonly layout: DataLayout;
  readonly machines: MachineSource;
  readonly scratchDisks: ScratchDisks;
  readonly diskGuard: Pick<DiskGuard, "watch">;
  /** of all indexes that are being written */
  readonly indexMemory: IndexMemory;
  readonly log: Log;
  /** shape of the machine that merges */
  readonly shape: MachineShape;
}

export interface MergeJob {
  /** the lowest first */
  readonly layers: readonly LayerId[];
  /** of all of them */
  readonly size: MergeSize;
  /** of the disk that they are merged into */
  readonly diskBytes: number;
  /**
   * Called when there is a machine, or another one, with what sets its share of the processors where others want them,
   * 1 to 10000; before that it is that of every machine.
   */
  readonly onMachine?: (weigh: (cpuWeight: number) => void) => void;
}

/**
 * Makes of layers the one that stands in for them, in a machine of its own: only there a kernel reads what guests
 * wrote. A machine that ends is replaced, once: nobody has seen anything of a merge before its end. The machine is gone
 * when this returns, throws or is aborted.
 * @throws ApiError with the cause when the guest or the host failed; the reason of `signal`
 */
export function mergeLayers(tools: MergeTools, job: MergeJob, signal: AbortSignal): Promise<StagedLayer> {
  const { log } = tools;
  return withReplacement(() => mergeOnce(tools, job, signal), { goal: "the layers were merged", log });
}

async function mergeOnce(tools: MergeTools, job: MergeJob, signal: AbortSignal): Promise<StagedLayer> {
  using diskUse = tools.diskGuard.watch({ name: `merge of ${job.layers.length} layers`, isSpare: true });
  const bounded = AbortSignal.any([signal, diskUse.full]);
  await using ready = await tools.machines.takeAside(tools.shape, bounded);
  job.onMachine?.((cpuWeight) => ready.machine.cgroup.weigh(cpuWeight));
  return await inMachine(ready, bounded, () => mergeIn(ready, { ...tools, diskUse, signal: bounded }, job));
}

async function mergeIn(
  { machine, agent }: ReadyMachine,
  tools: MergeTools & Indexing & { readonly diskUse: DiskUse },
  job: MergeJob,
): Promise<StagedLayer> {
  await using directory = await scratchDirectory(tools.layout.tmp, "merge-");
  const files = { diskPath: join(machine.directory, "S"), indexPath: join(directory.path, "index") };
  await tools.scratchDisks.stamp(job.diskBytes, files.diskPath);
  for (const path of Object.values(files)) tools.diskUse.add(path);
  const disks = layerDisks(job.layers.map((id) => layerPath(tools.layout, id)));
  const attached = machine.attach([...disks, { serial: "S", path: files.diskPath, readOnly: false }]);
  const mounted = agent.mount({ layers: disks.length, scratch: "bare" });
  // Its failure follows from that of the first, which is waited for first.
  mounted.catch(() => undefined);
  const time = new GuestTime({ allowedMs: () => mergeMs(job.size) });
  await time.wait("attaching the layers", attached);
  await time.wait("mounting the layers", mounted);
  await time.wait("merging the layers", agent.merge());
  await time.wait("unmounting the merged layer", agent.freeze());
  const facts = await indexDisk(time.stream("listing the merged layer", agent.index("scratch")), files, tools);
  const failure = await time.wait("asking for the machine's state", machine.failure());
  if (failure !== null) throw endedEarly(failure);
  await machine.kill();
  return await stageLayer(tools.layout, files, facts);
}
