import type { TSchema } from "@sinclair/typebox";
import { BYTES_KEYWORD, FLAG_KEYWORD } from "../query.ts";

type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };
export type JsonObject = { readonly [key: string]: Json };

/** Our own keywords, which are not part of JSON Schema. */
const OWN_KEYWORDS = new Set<string>(["error", BYTES_KEYWORD, FLAG_KEYWORD]);

/** Converts schemas to those of an OpenAPI 3.1 document, in which a named schema is written once. */
export class SchemaWriter {
  /** names by the JSON of the schema, because an optional property has a copy of its schema */
  readonly #names: ReadonlyMap<string, string>;

  constructor(named: Readonly<Record<string, TSchema>>) {
    this.#names = new Map(Object.entries(named).map(([name, schema]) => [JSON.stringify(schema), name]));
  }

  /** The schema, or a reference to it when it has a name. */
  write(schema: TSchema): JsonObject {
    const name = this.#names.get(JSON.stringify(schema));
    return name === undefined ? this.define(schema) : { $ref: `#/components/schemas/${name}` };
  }

  /** The schema itself, even if it has a name. */
  define(schema: TSchema): JsonObject {
    const written: Record<string, Json> = {};
    for (const [keyword, value] of Object.entries(schema)) {
      if (!OWN_KEYWORDS.has(keyword)) Object.assign(written, this.#keyword(keyword, value));
    }
    return written;
  }

  #keyword(keyword: string, value: unknown): JsonObject {
    switch (keyword) {
      case "properties":
        return { properties: mapValues(value as Record<string, TSchema>, (property) => this.write(property)) };
      case "items":
        return { items: this.write(value as TSchema) };
      case "patternProperties": {
        // Our patterns allow every key, which `additionalProperties` says more simply.
        const [first] = Object.values(value as Record<string, TSchema>);
        return first === undefined ? {} : { additionalProperties: this.write(first) };
      }
      case "anyOf": {
        const options = value as TSchema[];
        const constants = options.map((option) => option["const"] as Json | undefined);
        if (constants.every((constant) => typeof constant === "string")) return { type: "string", enum: constants };
        return { anyOf: options.map((option) => this.write(option)) };
      }
      default:
        return { [keyword]: value as Json };
    }
  }
}

function mapValues<T, U>(record: Readonly<Record<string, T>>, map: (value: T) => U): Record<string, U> {
  return Object.fromEntries(Object.entries(record).map(([key, value]) => [key, map(value)]));
}
