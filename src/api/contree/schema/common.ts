import { type SchemaOptions, type TSchema, Type } from "@sinclair/typebox";
import { UUID_PATTERN } from "../../../domain/ids.ts";
import { TIME_BOUND_FORMS } from "../../../domain/text/time-bound.ts";
import { FLAG_KEYWORD } from "../../query.ts";
import { Limit, Offset } from "../../wire-fields.ts";

export const Uuid = Type.String({ pattern: UUID_PATTERN, format: "uuid", description: "UUID in lower case" });

export const Timestamp = Type.String({ format: "date-time", description: "ISO 8601 timestamp in UTC" });

export const orNull = <Schema extends TSchema>(schema: Schema, options: SchemaOptions = {}) =>
  Type.Union([schema, Type.Null()], options);

/** A flag in a query: `1`, `true` and an empty value mean true, `0` and `false` mean false. */
export const flag = (name: string, description: string) =>
  Type.Boolean({ description, error: `${name} must be 1, 0, true, false or empty`, [FLAG_KEYWORD]: true });

const timeBound = (end: string) =>
  Type.String({ description: `${end} bound of the time, inclusive: ${TIME_BOUND_FORMS}, or seconds since the epoch` });

/** The part of the query that all listings have. */
export const Page = {
  limit: Type.Optional(Limit),
  offset: Type.Optional(Offset),
  since: Type.Optional(timeBound("lower")),
  until: Type.Optional(timeBound("upper")),
};
