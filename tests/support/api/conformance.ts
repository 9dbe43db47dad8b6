import { Kind, type TObject, type TSchema, Type } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";
import { errorFormOf } from "../../../src/api/app.ts";
import { RouteTable } from "../../../src/api/elysia-gaps.ts";
import { errorsOf } from "../../../src/api/openapi/openapi.ts";
import type { Route } from "../../../src/api/route.ts";
import type { ErrorBody, ErrorCode } from "../../../src/domain/errors.ts";
import type { Answer } from "./api.ts";

/** Errors that every path can answer with, in addition to those of its route. */
const COMMON_ERRORS: readonly ErrorCode[] = ["unauthorized", "not_found", "method_not_allowed"];

/**
 * Checks an answer against the route table: its status is declared, its body has the declared shape and no further
 * properties, and errors have the one error shape.
 * @throws Error that names the difference
 */
export function assertConforms(routes: readonly Route[], method: string, path: string, answer: Answer): void {
  const fail = (reason: string): never => {
    throw new Error(`${method} ${path} answered ${answer.status}: ${reason}\n${answer.text.slice(0, 1000)}`);
  };
  if (answer.headers.get("x-request-id") === null) fail("no X-Request-Id");
  if (method === "HEAD" && answer.bytes.length > 0) fail("HEAD with a body");
  const route = new RouteTable(routes).find(method, path.replace(/\?.*$/s, ""))?.route ?? null;
  const declared = route?.responses[answer.status];
  const isError = answer.status >= 400 && answer.json?.error !== undefined;
  // A route may declare refusals of its own, in addition to those of all routes.
  if (declared !== undefined && (!isError || declared.content !== undefined)) {
    for (const name of Object.keys(declared.headers ?? {}).filter(
      (header) => header === "Location" || header === "ETag",
    )) {
      if (answer.headers.get(name) === null) fail(`no ${name}`);
    }
    if (method !== "HEAD" && answer.json !== null)
      assertShape(declared.content?.["application/json"], answer.json, fail);
    return;
  }
  const form = errorFormOf(path.replace(/\?.*$/s, ""));
  const allowed = [...COMMON_ERRORS, ...(route === null ? [] : errorsOf(route))];
  if (!allowed.some((code) => form.statusOf[code] === answer.status)) fail("status is not declared");
  if (method === "HEAD") return;
  if (answer.json === null) fail("an error without a JSON body");
  assertShape(form.schema, answer.json, fail);
  const code = errorBodyOf(answer)?.error as ErrorCode;
  if (form.statusOf[code] !== answer.status) fail(`error ${code} has another status`);
  if (answer.status >= 500 && code === "internal_error") fail("internal error");
}

function assertShape(schema: TSchema | undefined, value: unknown, fail: (reason: string) => never): void {
  if (schema === undefined) return;
  const first = Value.Errors(strict(schema), value).First();
  if (first !== undefined) fail(`${first.path || "/"}: ${first.message} (${JSON.stringify(first.value)})`);
}

/** The schema without undeclared properties, so that an answer cannot leak any. */
function strict(schema: TSchema): TSchema {
  switch (schema[Kind]) {
    case "Object": {
      const properties = Object.fromEntries(
        Object.entries((schema as TObject).properties).map(([name, property]) => [name, strict(property)]),
      );
      return { ...schema, properties, additionalProperties: false } as TObject;
    }
    case "Array":
      return Type.Array(strict(schema["items"] as TSchema));
    case "Union":
      return Type.Union((schema["anyOf"] as TSchema[]).map(strict));
    default:
      return schema;
  }
}

/** The error of an answer in the form of any surface. */
export function errorBodyOf({ json, status }: Pick<Answer, "json" | "status">): ErrorBody | null {
  if (json === null) return null;
  if ("code" in json) return { error: json.code, message: json.error, details: json.details };
  if (!("jsonrpc" in json)) return json;
  const { message, data = { error: status === 400 ? "validation_error" : "", details: {} } } = json.error;
  return { ...data, message };
}
