import { RpcError } from "./errors.ts";

/**
 * A message of proto3 as JSON. The functions below read its fields: by the lower-camel-case name or the original one with
 * underscores; an absent field and `null` have the default value. Unknown fields are ignored. All throw RpcError
 * `invalid_argument` for a value of another type.
 */
export type RpcMessage = Readonly<Record<string, unknown>>;

const DECIMAL = /^-?\d{1,20}$/;
const UINT32_MAX = 2 ** 32 - 1;
/** Either alphabet of base64, with or without padding. */
const BASE64 = /^[\w+/-]*={0,2}$/;

/** Parses the bytes of a message. @throws RpcError `invalid_argument` unless they are an object of JSON */
export function parseMessage(bytes: Uint8Array): RpcMessage {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    const isMalformed = error instanceof SyntaxError || error instanceof RangeError || error instanceof TypeError;
    if (!isMalformed) throw error;
    throw new RpcError("invalid_argument", "the message must be valid JSON", { cause: error });
  }
  return objectOf(value);
}

/** @throws RpcError `invalid_argument` unless the value is an object */
export function objectOf(value: unknown): RpcMessage {
  if (isObject(value)) return value;
  throw new RpcError("invalid_argument", "the message must be an object");
}

/** A field of type `string`; "" by default. */
export function text(message: RpcMessage, name: string): string {
  return optionalText(message, name) ?? "";
}

/** A field of type `optional string`; null when it is absent. */
export function optionalText(message: RpcMessage, name: string): string | null {
  const value = field(message, name);
  if (value === null || typeof value === "string") return value;
  throw wrong(name, "text");
}

/** A field of type `bool`; `fallback` when it is absent. */
export function flag(message: RpcMessage, name: string, fallback = false): boolean {
  const value = field(message, name) ?? fallback;
  if (typeof value === "boolean") return value;
  throw wrong(name, "a boolean");
}

/** A field of type `uint32`, as a number or its decimal text; 0 by default. */
export function uint32(message: RpcMessage, name: string): number {
  return integer(message, name, 0, UINT32_MAX);
}

/** A field of type `bytes`; null when it is absent. */
export function optionalBytes(message: RpcMessage, name: string): Uint8Array | null {
  const value = field(message, name);
  if (value === null) return null;
  if (typeof value !== "string" || !BASE64.test(value)) throw wrong(name, "base64");
  return Buffer.from(value, "base64");
}

/** A field of an enumeration, by a name of `values` or by its number; 0 by default. */
export function enumeration(message: RpcMessage, name: string, values: Readonly<Record<string, number>>): number {
  const value = field(message, name) ?? 0;
  if (typeof value === "number" && Number.isInteger(value)) return value;
  if (typeof value === "string" && Object.hasOwn(values, value)) return values[value] ?? 0;
  throw wrong(name, `one of ${Object.keys(values).join(", ")}`);
}

/** A field with a message; null when it is absent. */
export function optionalMessage(message: RpcMessage, name: string): RpcMessage | null {
  const value = field(message, name);
  if (value === null || isObject(value)) return value;
  throw wrong(name, "an object");
}

/** A field with a list of texts; empty by default. */
export function textList(message: RpcMessage, name: string): readonly string[] {
  const value = field(message, name) ?? [];
  if (Array.isArray(value) && value.every((item) => typeof item === "string")) return value;
  throw wrong(name, "a list of texts");
}

/** A field with a map of texts; empty by default. */
export function textMap(message: RpcMessage, name: string): Readonly<Record<string, string>> {
  const value = field(message, name) ?? {};
  if (isObject(value) && Object.values(value).every((item) => typeof item === "string")) {
    return value as Record<string, string>;
  }
  throw wrong(name, "a map of texts");
}

function integer(message: RpcMessage, name: string, minimum: number, maximum: number): number {
  const value = field(message, name) ?? 0;
  const number = typeof value === "string" && DECIMAL.test(value) ? Number(value) : value;
  if (typeof number === "number" && Number.isInteger(number) && number >= minimum && number <= maximum) return number;
  throw wrong(name, `an integer from ${minimum} to ${maximum}`);
}

/** The value of a field; null when it is absent. */
function field(message: RpcMessage, name: string): unknown {
  if (Object.hasOwn(message, name)) return message[name] ?? null;
  const original = name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return Object.hasOwn(message, original) ? (message[original] ?? null) : null;
}

function isObject(value: unknown): value is RpcMessage {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function wrong(name: string, what: string): RpcError {
  return new RpcError("invalid_argument", `${name} must be ${what}`);
}
