import type { MachineShape } from "../vm/vmm.ts";
import type { Cost } from "./scheduler.ts";

/** Least memory of a machine in `bytes`: kernel, agent and its reserve, and something for the command. */
const MEMORY_BYTES_MIN = 256 * 1_048_576;
/** What a VM costs the host beside its guest's memory, in `bytes`. */
const VMM_OVERHEAD_BYTES = 64 * 1_048_576;

/** The template shape that serves a request: memory is rounded up to a power of two, so that there are few. */
export function templateShape(wanted: MachineShape): MachineShape {
  const memoryBytes = 2 ** Math.ceil(Math.log2(Math.max(wanted.memoryBytes, MEMORY_BYTES_MIN)));
  return { vcpus: wanted.vcpus, memoryBytes };
}

/** What a machine of this shape takes of the host's budget. */
export function costOf({ vcpus, memoryBytes }: MachineShape): Cost {
  return { vcpus, memoryBytes: memoryBytes + VMM_OVERHEAD_BYTES };
}
