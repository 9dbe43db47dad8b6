import { FormatRegistry, type TSchema } from "@sinclair/typebox";
import type { ValueError } from "@sinclair/typebox/compiler";
import { ApiError } from "../domain/errors.ts";
import { UUID_PATTERN } from "../domain/ids.ts";

// An unknown format fails every value; ours are checked by pattern, or come from ourselves.
const uuidExpression = new RegExp(UUID_PATTERN);
if (!FormatRegistry.Has("uuid")) FormatRegistry.Set("uuid", (value) => uuidExpression.test(value));
if (!FormatRegistry.Has("date-time")) {
  FormatRegistry.Set("date-time", (value) => !Number.isNaN(Date.parse(value)));
}

/** Longest field name in a message, in characters: keys of a caller's object can be anything. */
const FIELD_CHARACTERS_MAX = 200;

/** What is wrong with a value: the message names the field and says what is allowed. */
export function validationError(error: ValueError): ApiError {
  const field = fieldName(error.path);
  const rule = typeof error.schema["error"] === "string" ? error.schema["error"] : genericRule(error);
  const message = field === "" ? `the body ${rule}` : rule.startsWith(leaf(field)) ? rule : `${field} ${rule}`;
  return new ApiError("validation_error", message, { field, ...bounds(error.schema) });
}

/** Dotted name of a JSON pointer: `/files/~1etc~1x/mode` is `files./etc/x.mode`. */
function fieldName(pointer: string): string {
  const parts = pointer.split("/").slice(1);
  const name = parts.map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~")).join(".");
  return name.length > FIELD_CHARACTERS_MAX ? `${name.slice(0, FIELD_CHARACTERS_MAX)}…` : name;
}

/** Written rules begin with the name of their field, or with that of the object around it. */
function leaf(field: string): string {
  return /^[^.]*/.exec(field)?.[0] ?? field;
}

function genericRule(error: ValueError): string {
  const { type, format } = error.schema;
  if (format === "uuid") return "must be a UUID";
  if (error.value === undefined) return "is required";
  return typeof type === "string" ? `must be ${/^[aeiou]/.test(type) ? "an" : "a"} ${type}` : "is not valid";
}

/** What a program may want to know about the allowed values. */
function bounds(schema: TSchema): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const keyword of ["minimum", "maximum", "minLength", "maxLength", "pattern"]) {
    if (schema[keyword] !== undefined) found[keyword] = schema[keyword];
  }
  if (Array.isArray(schema["anyOf"])) {
    const values = schema["anyOf"].map((option: TSchema) => option["const"]).filter((value) => value !== undefined);
    if (values.length > 0) found["allowed"] = values;
  }
  return found;
}
