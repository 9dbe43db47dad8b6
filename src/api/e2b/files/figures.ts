import type { Envd } from "../envd-access.ts";
import type { E2bParts } from "../options.ts";

const MIB_BYTES = 1_048_576;
/** Figures before the first sample. */
const NONE = { cpuPercent: 0, memoryBytes: 0, cacheBytes: 0, diskBytes: 0 };

/** The latest figures of a sandbox in the words of its agent; sizes in `bytes`, the time in `seconds` since the epoch. */
export function latestFigures({ service, clock }: E2bParts, { principal, sandbox }: Envd) {
  const { at = clock(), ...sample } = { ...NONE, ...service.sandboxes.samples(principal, sandbox.id).at(-1) };
  const { vcpus, memoryBytes, diskBytes } = sandbox.resources;
  const usedBytes = Math.min(memoryBytes, sample.memoryBytes - sample.cacheBytes);
  return {
    ts: Math.floor(at / 1000),
    cpu_count: vcpus,
    cpu_used_pct: sample.cpuPercent,
    mem_total: memoryBytes,
    mem_used: usedBytes,
    mem_cache: Math.min(memoryBytes, sample.cacheBytes),
    mem_total_mib: Math.floor(memoryBytes / MIB_BYTES),
    mem_used_mib: Math.floor(usedBytes / MIB_BYTES),
    disk_used: Math.min(diskBytes, sample.diskBytes),
    disk_total: diskBytes,
  };
}
