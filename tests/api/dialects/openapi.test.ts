import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import SwaggerParser from "@apidevtools/swagger-parser";
import { Validator } from "@seriousme/openapi-schema-validator";
import { NAMED_SCHEMAS } from "../../../src/api/openapi/named-schemas.ts";
import { Api } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { documentText } from "../../support/source/documents.ts";

let api: Api;
// biome-ignore lint/suspicious/noExplicitAny: the document is walked without a type.
type Any = any;
let document: Any;
beforeAll(async () => {
  api = await Api.start();
  document = (await api.call("GET", "/openapi.json", { token: null })).json;
});
afterAll(() => api[Symbol.asyncDispose]());

/** Every object of the document with its path. */
function* objects(value: unknown, path = "#"): Generator<[string, Record<string, unknown>]> {
  if (typeof value !== "object" || value === null) return;
  if (!Array.isArray(value)) yield [path, value as Record<string, unknown>];
  for (const [key, child] of Object.entries(value)) yield* objects(child, `${path}/${key}`);
}

function operations(): [string, Any][] {
  return Object.entries(document.paths).flatMap(([path, item]) =>
    Object.entries(item as object).map(([method, operation]): [string, Any] => [`${method} ${path}`, operation]),
  );
}

test("it needs no token, and is OpenAPI 3.1", () => {
  expect(document.openapi).toBe("3.1.0");
  expect(document.info.title).toBe("Coppice");
});

test("the page about the API has a row for each request, and no other", () => {
  const [, table = ""] = /\n(\| request \|[\s\S]*?)\n## /.exec(documentText("docs/api.md")) ?? [];
  const listed = table.match(/`[A-Z]+ \/v1\/\S*`/g) ?? [];
  const routes = operations().map(([name]) => name.replace(/^\w+/, (method) => method.toUpperCase()));
  const specified = routes.filter((route) => route.includes(" /v1/"));
  expect(listed.map((request) => request.replaceAll("`", "")).sort()).toEqual(specified.sort());
});

test("two independent validators accept it", async () => {
  const { valid, errors } = await new Validator().validate(structuredClone(document));
  expect({ valid, errors }).toEqual({ valid: true, errors: undefined });
  await SwaggerParser.validate(structuredClone(document));
});

// spec: version.base
test("it describes every route once, with its scope", () => {
  const described = new Set(operations().map(([name]) => name));
  for (const route of api.parts.routes) {
    const name = `${route.method.toLowerCase()} ${route.path.replaceAll(/:(\w+)/g, "{$1}")}`;
    expect(described.has(name)).toBe(!route.hidden);
    if (route.scope !== null && !route.hidden) {
      expect(Object.fromEntries(operations())[name]?.["description"]).toContain(route.scope);
    }
  }
  const ids = operations().map(([, operation]) => operation["operationId"]);
  expect(new Set(ids).size).toBe(ids.length);
});

test("every reference resolves, and no internal keyword is left", () => {
  for (const [path, value] of objects(document)) {
    const reference = value["$ref"];
    if (typeof reference === "string") {
      const target = reference
        .split("/")
        .slice(1)
        .reduce((at: Any, key) => at?.[key], document);
      if (target === undefined) throw new Error(`${path}: ${reference} leads nowhere`);
    }
    const isNameMap = path.endsWith("/properties") || path.endsWith("/schemas");
    if (!isNameMap) {
      for (const keyword of ["x-coppice-bytes", "$id", "patternProperties"])
        expect([path, keyword in value]).toEqual([path, false]);
      if ("type" in value && typeof value["type"] === "string") expect([path, "error" in value]).toEqual([path, false]);
    }
  }
});

describe("a generated client", () => {
  const COMPONENT = /^#\/components\/schemas\/[A-Z][A-Za-z0-9]+$/;
  const schemas = (): Record<string, Any> => document.components.schemas;

  test("has a type with a name for every object and enumeration, and no copy of one", () => {
    const anonymous = [...objects(document)].filter(
      ([path, value]) =>
        !COMPONENT.test(path) &&
        !path.endsWith("/properties") &&
        (Object.keys(value["properties"] ?? {}).length > 0 || "enum" in value),
    );
    expect(anonymous.map(([path]) => path)).toEqual([]);
    const texts = new Map<string, string[]>();
    for (const [name, { description: _, ...schema }] of Object.entries(schemas())) {
      const text = JSON.stringify(schema);
      texts.set(text, [...(texts.get(text) ?? []), name]);
    }
    // The surfaces have types of their own for what looks alike today.
    const own = [...texts.values()].map((names) => names.filter((name) => !/^con_?tree/i.test(name)));
    expect(own.filter((names) => names.length > 1)).toEqual([]);
  });

  test("has the names that the schemas have in the source", () => {
    expect(Object.keys(NAMED_SCHEMAS).filter((name) => schemas()[name] === undefined)).toEqual([]);
    expect(schemas()["Operation"].properties.status).toEqual({ $ref: "#/components/schemas/OperationStatus" });
    const status = document.paths["/v1/operations"].get.parameters.find(
      (parameter: Any) => parameter.name === "status",
    );
    expect(status.schema).toEqual({ $ref: "#/components/schemas/OperationStatus" });
    expect(status.description).toMatch(/.{5,}/);
  });

  test("distinguishes the variants of a union by a constant of each", () => {
    const unions = [...objects(document)].filter(([, value]) => "discriminator" in value);
    const named = ["AskedOperation", "BranchRow", "OperationEvent"].map((name) => `#/components/schemas/${name}`);
    expect(unions.map(([path]) => path)).toEqual(named);
    for (const [, { oneOf, discriminator }] of unions as [string, Any][]) {
      const { propertyName, mapping } = discriminator;
      expect(new Set(Object.values(mapping))).toEqual(new Set(oneOf.map(({ $ref }: Any) => $ref)));
      for (const [value, reference] of Object.entries<string>(mapping)) {
        const variant = schemas()[reference.split("/").at(-1) ?? ""];
        expect(variant.required).toContain(propertyName);
        const tag = variant.properties[propertyName];
        const values = tag.const === undefined ? schemas()[tag.$ref.split("/").at(-1)].enum : [tag.const];
        expect(values).toContain(value);
      }
    }
  });

  test("has a function for every operation, and knows its token, its bodies and its errors", () => {
    expect(document.components.securitySchemes.bearer).toMatchObject({ type: "http", scheme: "bearer" });
    expect(document.security).toEqual([{ bearer: [] }]);
    for (const [name, operation] of operations()) {
      expect([name, operation.operationId]).toEqual([name, expect.stringMatching(/^[a-z]+(?:[A-Z][a-z0-9]*)*$/)]);
      expect([name, operation.tags.length]).toEqual([name, 1]);
      const isOpen = operation.security !== undefined;
      if (isOpen) expect([name, operation.security, name.includes("/v1")]).toEqual([name, [], false]);
      const contents = [operation.requestBody, ...Object.values<Any>(operation.responses)].flatMap((holder) =>
        Object.entries<Any>(holder?.content ?? {}),
      );
      for (const [type, { schema }] of contents) {
        // These are the only types that a client needs: their bodies are bytes or text.
        if (type !== "application/json") expect([name, type, schema.type]).toEqual([name, type, "string"]);
      }
      const failures = Object.entries<Any>(operation.responses).filter(([status]) => Number(status) >= 400);
      if (name.startsWith("head ") || isOpen) continue;
      expect([name, failures.length > 1]).toEqual([name, true]);
      const error = name.includes(" /v1/") ? "#/components/schemas/Error" : expect.stringMatching(/Error$/);
      for (const [, { content }] of failures) expect(content["application/json"].schema.$ref).toEqual(error);
    }
  });
});

// spec: errors.shape
test("every response, header, parameter and error is described", () => {
  for (const [name, operation] of operations()) {
    expect([name, operation["summary"]]).toEqual([name, expect.stringMatching(/^[A-Z].{5,}/)]);
    for (const parameter of (operation["parameters"] ?? []) as { description?: string; name: string }[]) {
      expect([name, parameter.name, parameter.description]).toEqual([
        name,
        parameter.name,
        expect.stringMatching(/.{3,}/),
      ]);
    }
    const responses = Object.entries(
      operation["responses"] as Record<
        string,
        { description: string; headers: Record<string, { description: string }> }
      >,
    );
    for (const [status, response] of responses) {
      expect([name, status, response.description.length > 3]).toEqual([name, status, true]);
      for (const header of Object.values(response.headers)) expect(header.description.length).toBeGreaterThan(3);
      expect(response.headers).toHaveProperty("X-Request-Id");
    }
    if (name.includes("/v1/")) {
      const statuses = responses.map(([status]) => status);
      expect(statuses).toContain("401");
      // Any token may read its own scopes, and the public key of the receipts.
      expect(statuses.includes("403")).toBe(!/\/(whoami|receipts\/key)$/.test(name));
    }
  }
});

describe("/docs", () => {
  test("shows every operation, without scripts and without anything from other hosts", async () => {
    const { text, headers } = await api.call("GET", "/docs", { token: null });
    for (const [, operation] of operations()) expect(text).toContain(`id="${operation["operationId"]}"`);
    const match = /<(?:script|link|img|iframe)|@import|url\(|javascript:|<[^>]*\son\w+=/i.exec(text);
    expect(match).toBeNull();
    for (const [, address] of text.matchAll(/(?:href|src)="([^"]*)"/g))
      expect(address).toMatch(/^(#|\/openapi\.json$)/);
    const policy = headers.get("content-security-policy") ?? "";
    expect(policy).toContain("default-src 'none'");
    expect(policy).not.toContain("unsafe");
  });

  test("the policy allows the page's own style", async () => {
    const { text, headers } = await api.call("GET", "/docs", { token: null });
    const style = /<style>(.*?)<\/style>/s.exec(text)?.[1] ?? "";
    const digest = new Bun.CryptoHasher("sha256").update(style).digest("base64");
    expect(headers.get("content-security-policy")).toContain(`'sha256-${digest}'`);
  });
});

describe("health", () => {
  heldTest("/healthz answers without a token", async () => {
    expect((await api.call("GET", "/healthz", { token: null })).json).toEqual({ status: "ok", version: "0.0.0-test" });
  });

  heldTest("/readyz says whether instances can run, in which isolation, or why not", async () => {
    expect((await api.call("GET", "/readyz", { token: null })).json).toEqual({
      ready: true,
      isolation: "vm-emulated",
      reason: "",
      checks: [],
    });
    const checks = [{ name: "acceleration", ok: false, reason: "the probe is running" }];
    api.operations.state = { ready: false, isolation: null, reason: "the probe is running", checks };
    const answer = await api.call("GET", "/readyz", { token: null });
    expect(answer.status).toBe(503);
    expect(answer.json).toEqual({ ready: false, isolation: null, reason: "the probe is running", checks });
  });
});
