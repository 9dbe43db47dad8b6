import { Type } from "@sinclair/typebox";
import { UUID_PATTERN } from "../../../domain/ids.ts";

/** Schema of a UUID on the wire. */
export const Uuid = Type.String({
  pattern: UUID_PATTERN,
  format: "uuid",
  description: "UUID in its canonical textual form",
  examples: ["0197a1d0-5a5e-7000-8000-3c6e0b8a9c15"],
});

/** Schema of a time on the wire. */
export const Timestamp = Type.String({
  format: "date-time",
  description: "ISO 8601 timestamp in UTC with milliseconds",
  examples: ["2026-11-20T10:30:00.000Z"],
});

/** Schema of the UUID of another object. */
export const Reference = (description: string) => Type.String({ pattern: UUID_PATTERN, format: "uuid", description });
