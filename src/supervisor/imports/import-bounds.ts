import type { CgroupLimits } from "../../cgroup/cgroup.ts";
import type { TreeLimits } from "../../oci/tree-limits.ts";
import { CpuWeight } from "../../vm/cpu-weight.ts";
import type { MachineShape } from "../../vm/vmm.ts";
import { type Cost, costOf } from "../operations/scheduler.ts";

/** Memory of the programs of one import, in `bytes`: what mkfs.erofs takes for as many files as it is given. */
export const TOOLS_MEMORY_BYTES = 2_147_483_648;
const TOOLS_PIDS_COUNT = 512;
/** Share of the budget that the programs of one import take at most, unless a machine takes more: another import, or runs, go on beside it. */
const TOOLS_BUDGET_RATIO = 0.5;

/** Files of a pull: thrice as many as an image may have layers, what skopeo writes for itself, and room to spare. */
const PULL_ENTRIES_MAX = 65_536;

/**
 * What an import holds of a budget of `budgetBytes`: the memory of its programs or that of its machine, whichever is
 * more, for the one comes after the other. Where the machine fits the budget, the import does.
 */
export function importCost(shape: MachineShape, budgetBytes: number): Cost {
  const machine = costOf(shape);
  const toolsBytes = Math.min(TOOLS_MEMORY_BYTES, Math.floor(budgetBytes * TOOLS_BUDGET_RATIO));
  return { ...machine, memoryBytes: Math.max(machine.memoryBytes, toolsBytes) };
}

/**
 * The control group that the programs of one import share: of memory they may take what the import holds of the budget,
 * but never more than the programs of any import.
 */
export function toolsLimits({ memoryBytes }: Cost): CgroupLimits {
  return {
    memoryBytes: Math.min(TOOLS_MEMORY_BYTES, memoryBytes),
    pids: TOOLS_PIDS_COUNT,
    cpuWeight: CpuWeight.inUse,
  };
}

/**
 * While it is pulled, an image is there as its archive, as that one's content, and as a layout, whose layers are mostly
 * compressed. Its files are those of skopeo, not those that it unpacks to.
 */
export function pullLimits({ bytesMax }: TreeLimits, archiveBytes: number): TreeLimits {
  const bytes = `pulling the image takes more than twice the ${bytesMax} bytes that the operator allows one to unpack to`;
  return {
    bytesMax: 2 * bytesMax + archiveBytes,
    entriesMax: PULL_ENTRIES_MAX,
    refusals: { bytes, entries: `pulling the image takes more than ${PULL_ENTRIES_MAX} files` },
  };
}
