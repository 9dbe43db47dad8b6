import { Type } from "@sinclair/typebox";

/** The fields of the answer to a fork with memory, without its children. */
export const MEMORY_FORK_FIELDS = {
  paused_ms: Type.Number({ description: "time for which the parent stood still, in milliseconds" }),
  copied_bytes: Type.Integer({ description: "size of the memory that was copied" }),
  warning: Type.String({ description: "what every fork has of its parent" }),
};
