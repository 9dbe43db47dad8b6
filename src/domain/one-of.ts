import { type SchemaOptions, Type } from "@sinclair/typebox";

/** Schema of a text that is one of `values`. Its type is spelled out, because a union of a mapped array has none. */
export function oneOf<const Values extends readonly string[]>(values: Values, options: SchemaOptions = {}) {
  const literals = values.map((value) => Type.Literal(value));
  return Type.Unsafe<Values[number]>(Type.Union(literals, options));
}
