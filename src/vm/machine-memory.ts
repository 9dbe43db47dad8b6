import type { MachineShape } from "./vmm.ts";

/** Beside the guest's memory, whatever its size, in `bytes`. */
export const OVERHEAD_BYTES = 134_217_728;
/** Of each processor: its thread and tables, in `bytes`; little more than half of it was measured. */
export const PROCESSOR_BYTES = 2_097_152;
/** What grows with the guest's memory: tables of its pages. */
const TABLES_RATIO = 1 / 32;

/** Of what machines and imports may take, this share is for templates beside it, within these bounds in `bytes`. */
const TEMPLATES_RATIO = 1 / 8;
export const TEMPLATES_BYTES_MIN = 134_217_728;
export const TEMPLATES_BYTES_MAX = 1_073_741_824;

/**
 * What templates together may take of the memory of a host whose machines and imports may take `budgetBytes`: no more
 * templates are made beyond it, and the one that exceeded it stays.
 */
export function templatesMemoryBytes(budgetBytes: number): number {
  return Math.min(TEMPLATES_BYTES_MAX, Math.max(TEMPLATES_BYTES_MIN, Math.floor(budgetBytes * TEMPLATES_RATIO)));
}

/**
 * All that a machine may take of the host's memory, in `bytes`: its control group allows it, and the scheduler counts it.
 * Beside the guest's memory that is the VMM. An emulated one takes most: 64 MiB of translated code and up to 46 MiB of
 * other memory were measured with 4 GiB, full, and two processors, and a guest that ran all new code. The rest is for
 * the page cache of the disks, which shrinks when there is too little room.
 */
export function machineMemoryBytes({ vcpus, memoryBytes }: MachineShape): number {
  return memoryBytes + Math.ceil(memoryBytes * TABLES_RATIO) + OVERHEAD_BYTES + vcpus * PROCESSOR_BYTES;
}
