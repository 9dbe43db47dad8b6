import type { CgroupLimits } from "../../cgroup/cgroup.ts";
import type { TreeLimits } from "../../oci/tree-limits.ts";
import { CpuWeight } from "../../vm/cpu-weight.ts";
import type { MachineShape } from "../../vm/vmm.ts";
import { type Cost, costOf } from "../operations/scheduler.ts";

/** Memory limit of the programs of one import, in `bytes`: mkfs.erofs needs this for the largest allowed tree. */
export const TOOLS_MEMORY_BYTES = 2_147_483_648;
const TOOLS_PIDS_COUNT = 512;
/** Largest share of the budget for the programs of one import, which leaves room for other imports and runs. */
const TOOLS_BUDGET_RATIO = 0.5;

/** Files of a pull: three for each layer that an image may have, those of skopeo, and a margin. */
const PULL_ENTRIES_MAX = 65_536;

/**
 * The cost of an import, for a memory budget of `budgetBytes`: the memory of its programs or of its machine, whichever is
 * larger, because they run one after the other. An import fits every budget that its machine fits.
 */
export function importCost(shape: MachineShape, budgetBytes: number): Cost {
  const machine = costOf(shape);
  const toolsBytes = Math.min(TOOLS_MEMORY_BYTES, Math.floor(budgetBytes * TOOLS_BUDGET_RATIO));
  return { ...machine, memoryBytes: Math.max(machine.memoryBytes, toolsBytes) };
}

/**
 * Limits of the control group that the programs of one import share: the memory that the import holds of the budget, but
 * at most `TOOLS_MEMORY_BYTES`.
 */
export function toolsLimits({ memoryBytes }: Cost): CgroupLimits {
  return {
    memoryBytes: Math.min(TOOLS_MEMORY_BYTES, memoryBytes),
    pids: TOOLS_PIDS_COUNT,
    cpuWeight: CpuWeight.inUse,
  };
}

/**
 * Limits of the directory of a pull. An image exists there as its archive, as the archive's content, and as a layout,
 * whose layers are mostly compressed. The files counted are skopeo's, not those of the unpacked image.
 */
export function pullLimits({ bytesMax }: TreeLimits, archiveBytes: number): TreeLimits {
  const bytes = `pulling the image takes more than twice the ${bytesMax} bytes that the operator allows an unpacked image`;
  return {
    bytesMax: 2 * bytesMax + archiveBytes,
    entriesMax: PULL_ENTRIES_MAX,
    refusals: { bytes, entries: `pulling the image takes more than ${PULL_ENTRIES_MAX} files` },
  };
}
