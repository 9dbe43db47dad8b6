import type { ApplianceParts } from "../../../src/service/parts.ts";
import { Scheduler } from "../../../src/supervisor/operations/scheduler.ts";

export const APPLIANCE_BUDGET = { memoryBytes: 4_294_967_296, vcpus: 8 };

/** An appliance without machines, which contacts no other host. */
export function emptyApplianceParts(
  dataDirectory: string,
  clock: () => number,
): ApplianceParts & { readonly scheduler: Scheduler } {
  const outside = {
    servers: ["192.0.2.1"],
    nameServerAnswers: async () => true,
    proxy: null,
    proxyFault: async () => null,
  };
  return {
    scheduler: new Scheduler(APPLIANCE_BUDGET, clock),
    machines: { counts: () => ({ waiting: 1, ready: 1, inUse: 0 }) },
    poolSize: 2,
    retention: { untaggedTtlMs: null, filesTtlMs: null, memoryTtlMs: 86_400_000 },
    desk: { running: async () => ({ version: "0.0.0", pid: process.pid, leavesInstances: false, operations: [] }) },
    health: { dataDirectory, emulation: "allow", outside },
  };
}
