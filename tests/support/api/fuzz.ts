import fc from "fast-check";

// biome-ignore lint/suspicious/noExplicitAny: the document has no type.
type Any = any;

/** One request that a description allows, or nearly allows. */
export interface FuzzRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | null;
}

/** Values that break parsers at any place. */
const NASTY_TEXT = [
  "",
  " ",
  "\u0000",
  "../../etc/passwd",
  "/",
  "/a/../b",
  "tag:",
  "tag:x",
  "%",
  "%zz",
  "é",
  "\u{1f600}",
  "\ud800",
  "__proto__",
  "base64:",
  "base64:!!!!",
  "1e400",
  "-0",
  "NaN",
  "null",
  "x".repeat(5000),
  "2026-11-20T10:30:00Z",
  "9999999999999w",
  "' or 1=1 --",
];

const nasty = fc.oneof(fc.constantFrom(...NASTY_TEXT), fc.string({ unit: "binary", maxLength: 40 }));

const anyJson = fc.oneof(fc.jsonValue({ maxDepth: 3 }), nasty, fc.constantFrom(-1, 0, 1.5, 2 ** 53, 1e308, true, null));

/** Requests to every operation of an OpenAPI document; `ids` are identifiers of existing objects. */
export function requestArbitrary(document: Any, ids: readonly string[]): fc.Arbitrary<FuzzRequest> {
  const operations = Object.entries(document.paths as Any).flatMap(([path, item]) =>
    Object.entries(item as Any).map(([method, operation]) =>
      operationArbitrary(document, { method, path, operation: operation as Any }, ids),
    ),
  );
  return fc.oneof(...operations);
}

function operationArbitrary(
  document: Any,
  described: { method: string; path: string; operation: Any },
  ids: readonly string[],
): fc.Arbitrary<FuzzRequest> {
  const { method, path, operation } = described;
  const parameters: Any[] = operation.parameters ?? [];
  const names = parameters.filter((parameter) => parameter.in === "path").map((parameter) => parameter.name as string);
  const uuid = fc.oneof({ arbitrary: fc.constantFrom(...ids), weight: 4 }, fc.uuid(), nasty);
  const query = parameters
    .filter((parameter) => parameter.in === "query")
    .map((parameter) =>
      fc.tuple(
        fc.constant(parameter.name as string),
        fc.array(queryValue(document, parameter.schema, ids), { maxLength: 2 }),
      ),
    );
  const schema = operation.requestBody?.content?.["application/json"]?.schema;
  const json =
    schema === undefined ? nasty : valueFor(document, schema, ids).map((value) => JSON.stringify(value) ?? "null");
  const body =
    operation.requestBody === undefined ? fc.constant(null) : fc.oneof({ arbitrary: json, weight: 8 }, nasty);
  return fc
    .record({ ids: fc.tuple(...names.map(() => uuid)), query: fc.tuple(...query), body, headers: headersArbitrary() })
    .map((parts) => {
      const filled = names.reduce(
        (text, name, index) => text.replace(`{${name}}`, percentEncode(parts.ids[index] ?? "")),
        path,
      );
      const pairs = parts.query.flatMap(([name, values]) => values.map((value) => `${name}=${value}`));
      const content: Record<string, string> = parts.body === null ? {} : { "content-type": "application/json" };
      return {
        method: method.toUpperCase(),
        path: pairs.length === 0 ? filled : `${filled}?${pairs.join("&")}`,
        headers: { ...content, ...parts.headers },
        body: parts.body,
      };
    });
}

function headersArbitrary(): fc.Arbitrary<Record<string, string>> {
  const range = fc.oneof(
    fc.tuple(fc.option(fc.nat(20)), fc.option(fc.nat(20))).map(([from, to]) => `bytes=${from ?? ""}-${to ?? ""}`),
    fc.stringMatching(/^[!-~]{1,20}$/),
  );
  const optional = fc.record({ range, "if-none-match": fc.constantFrom("*", '"x"', "W/") }, { requiredKeys: [] });
  return optional.map((headers) =>
    Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, String(value)])),
  );
}

/** Text of a query: mostly allowed by the schema, encoded or not. */
function queryValue(document: Any, schema: Any, ids: readonly string[]): fc.Arbitrary<string> {
  const good = valueFor(document, schema, ids).map((value) =>
    percentEncode(typeof value === "string" ? value : JSON.stringify(value)),
  );
  const paths = fc.constantFrom("/", "/f", "/d", "/d/g", "/l", "%2F", "/%ff", "/nowhere");
  return fc.oneof(good, paths, nasty.map(percentEncode), fc.stringMatching(/^[A-Za-z0-9%+./:-]{0,20}$/));
}

function valueFor(document: Any, schema: Any, ids: readonly string[]): fc.Arbitrary<unknown> {
  const resolved = schema.$ref === undefined ? schema : document.components.schemas[schema.$ref.split("/").at(-1)];
  return fc.oneof({ arbitrary: wellTyped(document, resolved, ids), weight: 6 }, anyJson);
}

function wellTyped(document: Any, schema: Any, ids: readonly string[]): fc.Arbitrary<unknown> {
  if (schema.enum !== undefined) return fc.constantFrom(...schema.enum);
  switch (schema.type) {
    case "boolean":
      return fc.boolean();
    case "integer":
      return fc.oneof(
        fc.constantFrom(schema.minimum ?? 0, schema.maximum ?? 1, (schema.maximum ?? 1) + 1),
        fc.nat(100),
      );
    case "array":
      return fc.array(valueFor(document, schema.items, ids), { maxLength: 3 });
    case "object": {
      if (schema.additionalProperties !== undefined) {
        return fc.dictionary(nasty, valueFor(document, schema.additionalProperties, ids), { maxKeys: 3 });
      }
      return objectArbitrary(document, schema, ids);
    }
    default: {
      const examples = (schema.examples ?? []) as string[];
      return fc.oneof(
        { arbitrary: fc.constantFrom(...(examples.length > 0 ? examples : ids)), weight: 4 },
        fc.constantFrom(...ids, "true", "tag:fuzz", "/f", "0644"),
        nasty,
      );
    }
  }
}

/** Few optional properties at once: with many, at least one of them is probably wrong. */
function objectArbitrary(document: Any, schema: Any, ids: readonly string[]): fc.Arbitrary<unknown> {
  const required: string[] = schema.required ?? [];
  const optional = Object.keys(schema.properties ?? {}).filter((name) => !required.includes(name));
  return fc
    .subarray(optional, { maxLength: Math.min(2, optional.length) })
    .chain((chosen) =>
      fc.record(
        Object.fromEntries(
          [...required, ...chosen].map((name) => [name, valueFor(document, schema.properties[name], ids)]),
        ),
      ),
    );
}

/** Percent-encoding that also accepts text that is not valid Unicode. */
function percentEncode(text: string): string {
  return encodeURIComponent(text.toWellFormed());
}
