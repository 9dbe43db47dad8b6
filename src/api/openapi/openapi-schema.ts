import type { TSchema } from "@sinclair/typebox";
import { BYTES_KEYWORD } from "../query.ts";

type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };
export type JsonObject = { readonly [key: string]: Json };

/** Keywords of ours that JSON Schema does not have. */
const OWN_KEYWORDS = new Set<string>(["error", BYTES_KEYWORD]);

/** Turns our schemas into those of an OpenAPI 3.1 document, in which named ones are written once. */
export class SchemaWriter {
  /** by the text of the schema: an optional property is a copy of the schema that it was made of */
  readonly #names: ReadonlyMap<string, string>;

  constructor(named: Readonly<Record<string, TSchema>>) {
    this.#names = new Map(Object.entries(named).map(([name, schema]) => [JSON.stringify(schema), name]));
  }

  /** The schema, or a reference to it when it has a name. */
  write(schema: TSchema): JsonObject {
    const name = this.#names.get(JSON.stringify(schema));
    return name === undefined ? this.define(schema) : { $ref: `#/components/schemas/${name}` };
  }

  /** The schema itself, also when it has a name. */
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
        // Ours allow every key, for which there is a plainer word.
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
