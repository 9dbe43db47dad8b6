import { type Static, Type } from "@sinclair/typebox";
import { Timestamp } from "./ids.ts";

/** One line of the log about an operation. */
export const LogLine = Type.Object({
  time: Timestamp,
  level: Type.String({ description: "debug, info, warn or error" }),
  message: Type.String(),
  request: Type.Optional(Type.String({ description: "id of the request that asked for the operation" })),
  kind: Type.Optional(Type.String()),
  status: Type.Optional(Type.String()),
  error: Type.Optional(Type.String()),
  reason: Type.Optional(Type.String()),
  phases: Type.Optional(
    Type.Record(Type.String(), Type.Integer({ minimum: 0 }), { description: "milliseconds of each step" }),
  ),
});
export type LogLine = Static<typeof LogLine>;
