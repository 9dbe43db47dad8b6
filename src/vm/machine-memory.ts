import type { MachineShape } from "./vmm.ts";

/** Memory of a VMM in addition to the guest's memory, independent of the guest's size, in `bytes`. */
export const OVERHEAD_BYTES = 134_217_728;
/** Thread and tables of one processor, in `bytes`; measurements showed little more than half of this. */
export const PROCESSOR_BYTES = 2_097_152;
/** Page tables, as a fraction of the guest's memory. */
const TABLES_RATIO = 1 / 32;

/** Templates get this fraction of the budget of machines and imports, on top of it, within the bounds (in `bytes`). */
const TEMPLATES_RATIO = 1 / 8;
export const TEMPLATES_BYTES_MIN = 134_217_728;
export const TEMPLATES_BYTES_MAX = 1_073_741_824;

/**
 * Limit for the memory of all templates together, in `bytes`, on a host whose machines and imports may use
 * `budgetBytes`. Above the limit no template is made; the one that exceeded it stays.
 */
export function templatesMemoryBytes(budgetBytes: number): number {
  return Math.min(TEMPLATES_BYTES_MAX, Math.max(TEMPLATES_BYTES_MIN, Math.floor(budgetBytes * TEMPLATES_RATIO)));
}

/**
 * Limit of the host memory of one machine, in `bytes`. Its cgroup enforces this number, and the scheduler counts with
 * it. It covers the guest's memory and the VMM. A VMM that emulates takes most: with 4 GiB of used memory, two
 * processors and a guest that ran only new code, 64 MiB of translated code and up to 46 MiB of other memory were
 * measured. The rest is for the page cache of the disks, which the kernel shrinks when the limit is reached.
 */
export function machineMemoryBytes({ vcpus, memoryBytes }: MachineShape): number {
  return memoryBytes + Math.ceil(memoryBytes * TABLES_RATIO) + OVERHEAD_BYTES + vcpus * PROCESSOR_BYTES;
}
