import { type TObject, type TSchema, Type } from "@sinclair/typebox";
import { ApiError } from "../domain/errors.ts";
import { type ByteString, bytesToByteString } from "../domain/tree/guest-path.ts";

/** Schema keyword of a query parameter that is read as bytes instead of UTF-8 text. */
export const BYTES_KEYWORD = "x-coppice-bytes";

/** Schema keyword of a flag, which may also be `1`, `0`, or empty for true. */
export const FLAG_KEYWORD = "x-coppice-flag";

/** Schema keyword, with any value, that keeps Elysia from splitting the values of a repeated parameter at their commas. */
export const REPEATED_KEYWORD = "elysiaMeta";

/** Schema keyword of a record that is read from all parameters whose names begin with its value. */
export const PREFIX_KEYWORD = "x-coppice-prefix";

/** Query parameters whose names begin with `prefix`, as a record by the rests of their names. */
export function prefixed<Value extends TSchema>(
  prefix: string,
  value: Value,
  { maximum, description, error }: { readonly maximum: number; readonly description: string; readonly error: string },
) {
  const key = Type.String({ pattern: "^[\\s\\S]*$" });
  const keywords = { [PREFIX_KEYWORD]: prefix, [REPEATED_KEYWORD]: "prefixed" };
  return Type.Record(key, value, { maxProperties: maximum, description, error, ...keywords });
}

/** A query parameter that may be given several times, up to `maximum`. */
export function repeated<Item extends TSchema>(
  name: string,
  item: Item,
  { maximum, description }: { readonly maximum: number; readonly description: string },
) {
  return Type.Array(item, {
    minItems: 1,
    maxItems: maximum,
    description: `${description}; may be given up to ${maximum} times`,
    error: `${name} must be given at most ${maximum} times`,
    [REPEATED_KEYWORD]: "repeated",
  });
}

const FLAGS: ReadonlyMap<string, boolean> = new Map([
  ...["", "1", "true"].map((text) => [text, true] as const),
  ...["0", "false"].map((text) => [text, false] as const),
]);
const INTEGER = /^(?:0|-?[1-9]\d*)$/;
const PERCENT = 0x25;
const PLUS = 0x2b;
const SPACE = 0x20;

/** The raw query of a request, without its question mark; empty when there is none. */
export function rawQuery(url: string): string {
  const start = url.indexOf("?");
  if (start === -1) return "";
  const end = url.indexOf("#", start);
  return url.slice(start + 1, end === -1 ? undefined : end);
}

/**
 * Makes a function that reads queries by a schema. It ignores parameters that the schema does not name. A value that looks
 * like the type of its property is converted to that type; it must still be validated against the schema. A parameter whose
 * type is an array may be given several times.
 */
export function queryReader(schema: TObject): (raw: string) => Record<string, unknown> {
  const properties = Object.entries(schema.properties as Record<string, TSchema>);
  const required = new Set<string>(schema.required ?? []);
  return (raw) => {
    // The fast path: most requests have no query.
    if (raw === "" && required.size === 0) return {};
    const given = splitQuery(raw);
    const query: Record<string, unknown> = {};
    for (const [name, property] of properties) {
      const prefix: unknown = property[PREFIX_KEYWORD];
      if (typeof prefix === "string") {
        const record = readPrefixed(given, prefix);
        if (record !== null) query[name] = record;
        continue;
      }
      const values = given.get(name);
      if (values === undefined) {
        if (required.has(name)) fieldError(name, `${name} is required`);
        continue;
      }
      if (property["type"] === "array") {
        query[name] = values.map((value) => coerce(name, property["items"] as TSchema, value));
        continue;
      }
      const [value] = values;
      if (values.length !== 1 || value === undefined) fieldError(name, `${name} must be given once`);
      query[name] = coerce(name, property, value);
    }
    return query;
  };
}

/** The texts of the parameters whose names begin with `prefix`; null when there are none. */
function readPrefixed(given: ReadonlyMap<string, readonly string[]>, prefix: string): Record<string, string> | null {
  const entries = [...given].filter(([name]) => name.startsWith(prefix));
  if (entries.length === 0) return null;
  const texts = entries.map(([name, [value = "", ...more]]): [string, string] => {
    if (more.length > 0) fieldError(name, `${name} must be given once`);
    return [nameText(name).slice(prefix.length), textOf(name, value)];
  });
  return Object.fromEntries(texts);
}

/** Raw values by decoded name. */
function splitQuery(raw: string): Map<string, string[]> {
  const valuesOf = new Map<string, string[]>();
  for (const pair of raw.split("&")) {
    if (pair === "") continue;
    const equals = pair.indexOf("=");
    const name = equals === -1 ? pair : pair.slice(0, equals);
    const value = equals === -1 ? "" : pair.slice(equals + 1);
    // A name that cannot be decoded is ignored, as every unknown name is.
    const decoded = percentDecode(name);
    if (decoded === null) continue;
    const values = valuesOf.get(decoded);
    if (values === undefined) valuesOf.set(decoded, [value]);
    else values.push(value);
  }
  return valuesOf;
}

function bytesOf(name: string, raw: string): ByteString {
  return percentDecode(raw) ?? fieldError(name, `${name} must be percent-encoded: "%" and two hexadecimal digits`);
}

function textOf(name: string, raw: string): string {
  return utf8Text(bytesOf(name, raw)) ?? fieldError(name, `${name} must be UTF-8`);
}

function coerce(name: string, schema: TSchema, raw: string): unknown {
  if (schema[BYTES_KEYWORD] === true) return bytesOf(name, raw);
  const text = textOf(name, raw);
  // A value that does not look like its type stays text, and fails validation with the schema's own message.
  if (schema["type"] === "integer") return INTEGER.test(text) ? Number(text) : text;
  if (schema[FLAG_KEYWORD] === true) return FLAGS.get(text) ?? text;
  if (schema["type"] === "boolean") return text === "true" ? true : text === "false" ? false : text;
  return text;
}

/** The decoded bytes; null when a percent sign is not followed by two hexadecimal digits. */
function percentDecode(raw: string): ByteString | null {
  const source = Buffer.from(raw, "utf8");
  const target = Buffer.allocUnsafe(source.byteLength);
  let length = 0;
  for (let index = 0; index < source.byteLength; index++) {
    let byte = source[index] ?? 0;
    if (byte === PLUS) byte = SPACE;
    if (byte === PERCENT) {
      const digits = source.toString("latin1", index + 1, index + 3);
      if (!/^[0-9a-fA-F]{2}$/.test(digits)) return null;
      byte = Number.parseInt(digits, 16);
      index += 2;
    }
    target[length++] = byte;
  }
  return bytesToByteString(target.subarray(0, length));
}

/** A decoded name as text. Names are bytes, because most of them are only compared. */
function nameText(name: string): string {
  return utf8Text(name as ByteString) ?? fieldError("query", "the names of parameters must be UTF-8");
}

function utf8Text(bytes: ByteString): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Buffer.from(bytes, "latin1"));
  } catch (error) {
    if (error instanceof TypeError) return null;
    throw error;
  }
}

function fieldError(field: string, message: string): never {
  throw new ApiError("validation_error", message, { field });
}
