import type { TSchema } from "@sinclair/typebox";
import { BYTES_KEYWORD, FLAG_KEYWORD, PREFIX_KEYWORD, REPEATED_KEYWORD } from "../query.ts";

type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };
export type JsonObject = { readonly [key: string]: Json };

/** Our own keywords, which are not part of JSON Schema. */
const OWN_KEYWORDS = new Set<string>(["error", BYTES_KEYWORD, FLAG_KEYWORD, PREFIX_KEYWORD, REPEATED_KEYWORD]);
/** Keywords about the place where a schema is used, not about its values. */
const ANNOTATIONS: ReadonlySet<string> = new Set(["description", "default", "examples", "error"]);
const REFERENCE = "#/components/schemas/";

/**
 * Converts schemas to those of an OpenAPI 3.1 document. Every object with properties, every enumeration and every tagged
 * union is written once, as a component: a generated client then has one type for it, with a stable name.
 */
export class SchemaWriter {
  /** names by the JSON of the schema without its annotations, because an optional property has a copy of its schema */
  readonly #names: Map<string, string>;
  readonly #named: Readonly<Record<string, TSchema>>;
  readonly #components = new Map<string, JsonObject>();

  /** @param named schemas that have a name of their own */
  constructor(named: Readonly<Record<string, TSchema>>) {
    this.#named = named;
    this.#names = new Map(Object.entries(named).map(([name, schema]) => [keyOf(schema), name]));
  }

  /** The components that were referred to, by name. */
  get components(): JsonObject {
    return Object.fromEntries([...this.#components].sort(([a], [b]) => (a < b ? -1 : 1)));
  }

  /**
   * The schema, or a reference to its component.
   * @param suggested name of the component, should it have none yet
   */
  write(schema: TSchema, suggested: string): JsonObject {
    const key = keyOf(schema);
    const ownName = this.#names.get(key);
    if (ownName === undefined && !isComponent(schema)) return this.#define(schema, suggested);
    const name = ownName ?? this.#free(suggested);
    this.#names.set(key, name);
    const declared = this.#named[name] ?? schema;
    if (!this.#components.has(name)) {
      // Set before, because the order of components is that of their first use.
      this.#components.set(name, {});
      // A component is used in several places, so it has no default of the first one.
      const { default: _default, ...lasting } = this.#define(declared, name);
      this.#components.set(name, lasting);
    }
    const own = ownAnnotations(schema, declared, ownName !== undefined);
    return { $ref: `${REFERENCE}${name}`, ...own };
  }

  /** The name, with the first number that makes it unique if a component has it already. */
  #free(suggested: string): string {
    const isUsed = (name: string): boolean => this.#components.has(name) || this.#named[name] !== undefined;
    let name = suggested;
    for (let count = 2; isUsed(name); count += 1) name = `${suggested}${count}`;
    return name;
  }

  #define(schema: TSchema, name: string): JsonObject {
    const written: Record<string, Json> = {};
    for (const [keyword, value] of Object.entries(schema)) {
      if (!OWN_KEYWORDS.has(keyword)) Object.assign(written, this.#keyword(keyword, value, { schema, name }));
    }
    return written;
  }

  #keyword(keyword: string, value: unknown, { schema, name }: { schema: TSchema; name: string }): JsonObject {
    switch (keyword) {
      case "properties":
        return {
          properties: mapValues(value as Record<string, TSchema>, (property, key) =>
            this.write(property, name + capitalized(key)),
          ),
        };
      case "items":
        return { items: this.write(value as TSchema, `${name}Item`) };
      case "patternProperties": {
        // Our patterns allow every key, which `additionalProperties` says more simply.
        const [first] = Object.values(value as Record<string, TSchema>);
        return first === undefined ? {} : { additionalProperties: this.write(first, `${name}Value`) };
      }
      case "anyOf":
        return this.#union(schema, name);
      case "discriminator":
        // Written with the variants, whose names it has.
        return {};
      default:
        return { [keyword]: value as Json };
    }
  }

  #union(schema: TSchema, name: string): JsonObject {
    const options = schema["anyOf"] as readonly TSchema[];
    const texts = textsOf(options);
    if (texts.length === options.length) return { type: "string", enum: texts };
    const { propertyName } = (schema["discriminator"] ?? {}) as { readonly propertyName?: string };
    if (propertyName === undefined) {
      const others = options.filter((option) => typeof option["const"] !== "string");
      const enumeration = texts.length > 1 ? [{ anyOf: options.filter((option) => !others.includes(option)) }] : [];
      const variants = texts.length > 1 ? [...enumeration, ...others] : options;
      return { anyOf: variants.map((option) => this.write(option as TSchema, name)) };
    }
    const variants = options.map((option) => ({ option, written: this.write(option, `${name}Variant`) }));
    const mapping = variants.flatMap(({ option, written }) => {
      const tag = (option["properties"] as Record<string, TSchema>)[propertyName];
      const values = tag === undefined ? [] : textsOf((tag["anyOf"] as readonly TSchema[] | undefined) ?? [tag]);
      return values.map((value) => [value, written["$ref"] as Json] as const);
    });
    return {
      oneOf: variants.map(({ written }) => written),
      discriminator: { propertyName, mapping: Object.fromEntries(mapping) },
    };
  }
}

/** The texts among the options that are constants. */
function textsOf(options: readonly TSchema[]): string[] {
  return options.map((option) => option["const"] as unknown).filter((text) => typeof text === "string");
}

function isComponent(schema: TSchema): boolean {
  if (schema["properties"] !== undefined) return Object.keys(schema["properties"] as object).length > 0;
  const options = schema["anyOf"] as readonly TSchema[] | undefined;
  if (options === undefined) return false;
  return schema["discriminator"] !== undefined || (options.length > 1 && textsOf(options).length === options.length);
}

function keyOf(schema: TSchema): string {
  return JSON.stringify(Object.fromEntries(Object.entries(schema).filter(([keyword]) => !ANNOTATIONS.has(keyword))));
}

/** Annotations of the place of use that the component lacks, or has with other values. */
function ownAnnotations(schema: TSchema, declared: TSchema, isKnown: boolean): JsonObject {
  const { default: given, description } = schema as { readonly default?: Json; readonly description?: string };
  return {
    ...(isKnown && description !== undefined && description !== declared["description"] ? { description } : {}),
    ...(given === undefined ? {} : { default: given }),
  };
}

/** `size_bytes` is `SizeBytes`, as the names of types are. */
export function capitalized(name: string): string {
  return name.replaceAll(/(?:^|_)(\w)/g, (_, first: string) => first.toUpperCase());
}

function mapValues<T, U>(record: Readonly<Record<string, T>>, map: (value: T, key: string) => U): Record<string, U> {
  return Object.fromEntries(Object.entries(record).map(([key, value]) => [key, map(value, key)]));
}
