import { join } from "node:path";
import type { LayerId } from "../domain/ids.ts";
import { layerPath } from "../storage/layers.ts";
import type { DataLayout } from "../storage/layout.ts";
import { scratchDirectory } from "../system/scratch.ts";
import type { MachineShape } from "../vm/vmm.ts";
import { FREEZE_MS_MAX, indexDisk, type StagedLayer, stageLayer } from "./capture.ts";
import { withDeadline } from "./deadline.ts";
import { layerDisks, MOUNT_MS_MAX } from "./execute.ts";
import { endedEarly, inMachine, type MachineSource, type ReadyMachine } from "./machines.ts";
import type { ScratchDisks } from "./scratch-disks.ts";

/** Copying gigabytes takes minutes under emulation. */
const MERGE_MS_MAX = 1_800_000;

export interface MergeTools {
  readonly layout: DataLayout;
  readonly machines: MachineSource;
  readonly scratchDisks: ScratchDisks;
  /** shape of the machine that merges */
  readonly shape: MachineShape;
}

export interface MergeJob {
  /** the lowest first */
  readonly layers: readonly LayerId[];
  readonly diskBytes: number;
  /**
   * Called when there is a machine, with what sets its share of the processors where others want them, 1 to 10000;
   * before that it is that of every machine.
   */
  readonly onMachine?: (weigh: (cpuWeight: number) => void) => void;
}

/**
 * Makes of layers the one that stands in for them, in a machine of its own: only there a kernel reads what guests
 * wrote. The machine is gone when this returns, throws or is aborted.
 * @throws ApiError with the cause when the guest or the host failed; the reason of `signal`
 */
export async function mergeLayers(tools: MergeTools, job: MergeJob, signal: AbortSignal): Promise<StagedLayer> {
  await using ready = await tools.machines.takeAside(tools.shape, signal);
  job.onMachine?.((cpuWeight) => ready.machine.cgroup.weigh(cpuWeight));
  return await inMachine(ready, signal, () => mergeIn(ready, tools, job));
}

async function mergeIn({ machine, agent }: ReadyMachine, tools: MergeTools, job: MergeJob): Promise<StagedLayer> {
  await using directory = await scratchDirectory(tools.layout.tmp, "merge-");
  const files = { diskPath: join(machine.directory, "S"), indexPath: join(directory.path, "index") };
  await tools.scratchDisks.stamp(job.diskBytes, files.diskPath);
  const disks = layerDisks(job.layers.map((id) => layerPath(tools.layout, id)));
  const attached = machine.attach([...disks, { serial: "S", path: files.diskPath, readOnly: false }]);
  const mounted = agent.mount({ layers: disks.length, scratch: "bare" });
  // Its failure follows from that of the first, which is waited for first.
  mounted.catch(() => undefined);
  await withDeadline(attached, MOUNT_MS_MAX, "attaching the layers");
  await withDeadline(mounted, MOUNT_MS_MAX, "mounting the layers");
  await withDeadline(agent.merge(), MERGE_MS_MAX, "merging the layers");
  await withDeadline(agent.freeze(), FREEZE_MS_MAX, "unmounting the merged layer");
  const facts = await indexDisk(agent, "scratch", files);
  const failure = await machine.failure();
  if (failure !== null) throw endedEarly(failure);
  await machine.kill();
  return await stageLayer(tools.layout, files, facts);
}
