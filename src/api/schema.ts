import { FormatRegistry, type TSchema } from "@sinclair/typebox";
import type { ValueError } from "@sinclair/typebox/compiler";
import { ApiError } from "../domain/errors.ts";
import { UUID_PATTERN } from "../domain/ids.ts";

// TypeBox refuses every value of a format that is not registered.
const uuidExpression = new RegExp(UUID_PATTERN);
if (!FormatRegistry.Has("uuid")) FormatRegistry.Set("uuid", (value) => uuidExpression.test(value));
if (!FormatRegistry.Has("date-time")) {
  FormatRegistry.Set("date-time", (value) => !Number.isNaN(Date.parse(value)));
}

/** Longest field name in a message, in characters: the keys of a caller's object can be of any length. */
const FIELD_CHARACTERS_MAX = 200;

/** The error for an invalid value: the message names the field and the rule. */
export function validationError(failure: ValueError): ApiError {
  const error = innermost(failure);
  const field = fieldName(error.path);
  const text: unknown = error.schema["error"];
  const rule = typeof text === "string" && text !== "" ? text : genericRule(error);
  const message = field === "" ? `the body ${rule}` : aboutField(field, rule);
  return new ApiError("validation_error", message, { field, ...bounds(error.schema) });
}

/** For a union with one variant of the value's type, the error in that variant: it names the wrong part of the value. */
function innermost(error: ValueError): ValueError {
  const { schema, value, errors } = error;
  if (!Array.isArray(schema["anyOf"]) || typeof value !== "object" || value === null) return error;
  const type = Array.isArray(value) ? "array" : "object";
  const inner = errors[schema["anyOf"].findIndex((variant: TSchema) => variant["type"] === type)]?.First();
  return inner === undefined ? error : innermost(inner);
}

/** Dotted name of a JSON pointer: `/files/~1etc~1x/mode` is `files./etc/x.mode`. */
function fieldName(pointer: string): string {
  const parts = pointer.split("/").slice(1);
  const name = parts.map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~")).join(".");
  return name.length > FIELD_CHARACTERS_MAX ? `${name.slice(0, FIELD_CHARACTERS_MAX)}…` : name;
}

/** The rule of a field. A schema's own `error` text begins with the first or the last part of the dotted name. */
function aboutField(field: string, rule: string): string {
  const parts = field.split(".");
  if (rule.startsWith(`${parts[0]} `)) return rule;
  const last = parts.at(-1) ?? "";
  return rule.startsWith(`${last} `) ? `${field}${rule.slice(last.length)}` : `${field} ${rule}`;
}

function genericRule(error: ValueError): string {
  const { type, format } = error.schema;
  if (format === "uuid") return "must be a UUID";
  if (error.value === undefined) return "is required";
  return typeof type === "string" ? `must be ${/^[aeiou]/.test(type) ? "an" : "a"} ${type}` : "is not valid";
}

/** The bounds of a value, for the details of the error. */
function bounds(schema: TSchema): Record<string, unknown> {
  const bounds: Record<string, unknown> = {};
  for (const keyword of ["minimum", "maximum", "minLength", "maxLength", "pattern"]) {
    if (schema[keyword] !== undefined) bounds[keyword] = schema[keyword];
  }
  if (Array.isArray(schema["anyOf"])) {
    const values = schema["anyOf"].map((option: TSchema) => option["const"]).filter((value) => value !== undefined);
    if (values.length > 0) bounds["allowed"] = values;
  }
  return bounds;
}
