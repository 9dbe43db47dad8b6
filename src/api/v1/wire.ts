import { Type } from "@sinclair/typebox";
import { Timestamp, Uuid } from "../../domain/ids.ts";

/** Answer to what starts an operation: its id, which is also in the Location header. */
export const AcceptedOperation = Type.Object({ uuid: Uuid });

/** One look at a running instance. */
export const InstanceStatsSchema = Type.Object({
  cpu_time_ms: Type.Integer({ description: "CPU time of the virtual machine so far, in milliseconds" }),
  cpu_percent: Type.Number({ description: "share of one CPU since the look before; 200 is two CPUs" }),
  memory_bytes: Type.Integer({ description: "memory of the virtual machine now" }),
  memory_peak_bytes: Type.Integer({ description: "highest memory of the virtual machine so far" }),
  pids: Type.Integer({ description: "threads of the virtual machine on the host" }),
  at: Timestamp,
});
