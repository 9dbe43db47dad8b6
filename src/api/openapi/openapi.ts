import { type TSchema, Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import type { ErrorCode } from "../../domain/errors.ts";
import { type ErrorForm, STATUS_OF_ERROR } from "../errors.ts";
import { pathParameter } from "../parameters.ts";
import { PREFIX_KEYWORD } from "../query.ts";
import { json, type Reply, respond } from "../reply.ts";
import { ANY_TOKEN, AnyObject, about, RAW_BODY, type ResponseSpec, type Route } from "../route.ts";
import { docsPage } from "./docs.ts";
import { NAMED_SCHEMAS } from "./named-schemas.ts";
import { capitalized, type JsonObject, SchemaWriter } from "./openapi-schema.ts";

const ERROR_DESCRIPTIONS: Readonly<Record<ErrorCode, string>> = {
  validation_error: "a value of the request is invalid; the message names the field and the rule",
  unauthorized: "the token is missing or not valid",
  forbidden: "the token does not allow this, or the operator does not",
  not_found: "there is no such object, or it belongs to another account",
  method_not_allowed: "the path does not allow the method",
  conflict: "the state of the object does not allow this",
  not_resumable: "the memory of a paused sandbox cannot be resumed here; its files can",
  payload_too_large: "the body is too large",
  range_not_satisfiable: "the range lies outside the file",
  invalid_path: "a path is relative, malformed, or of the wrong kind",
  too_many_requests: "too much is queued already",
  internal_error: "the service failed; its log names the cause under the request's id",
  unavailable: "the service cannot do this now",
  insufficient_storage: "the disk of the service is full",
};

const ERROR_HEADERS: Partial<Record<ErrorCode, Record<string, string>>> = {
  unauthorized: { "WWW-Authenticate": "the Bearer scheme" },
  range_not_satisfiable: { "Content-Range": "size of the file" },
  too_many_requests: { "Retry-After": "recommended time until the next attempt, in seconds" },
  unavailable: { "Retry-After": "recommended time until the next attempt, in seconds" },
};

const REQUEST_ID_HEADER = { "X-Request-Id": "id of the request, which is also in the service's log" };

const HtmlPage = Type.String({ description: "an HTML page that loads nothing from outside" });

const DOCUMENT = about({
  id: "openApi",
  tag: "Service",
  summary: "Read this description",
  responses: { 200: { description: "an OpenAPI 3.1 document", content: { "application/json": AnyObject } } },
});

const PAGE = about({
  id: "docs",
  tag: "Service",
  summary: "Read this description as a page",
  responses: { 200: { description: "the page", content: { "text/html": HtmlPage } } },
});

export interface OpenApiOptions {
  readonly version: string;
  readonly publicUrl: string | null;
  /** the form of the errors of a path */
  readonly errorForm: (path: string) => ErrorForm;
}

/** Serves the API description as JSON and as a page. `routes` returns all routes, including these two. */
export function openApiPlugin({ version, publicUrl, errorForm }: OpenApiOptions, routes: () => readonly Route[]) {
  // The document never changes: the first request builds it.
  let text: string | null = null;
  let page: Reply | null = null;
  const document = (): JsonObject => openApiDocument(routes(), { version, url: publicUrl ?? "/", errorForm });
  return new Elysia()
    .get(
      "/openapi.json",
      ({ request }) => {
        text ??= JSON.stringify(document());
        return respond({ ...json(200, null), body: text }, request);
      },
      DOCUMENT,
    )
    .get(
      "/docs",
      ({ request }) => {
        page ??= docsPage(document());
        return respond(page, request);
      },
      PAGE,
    );
}

/** Describes routes as an OpenAPI 3.1 document. */
function openApiDocument(
  routes: readonly Route[],
  options: { readonly version: string; readonly url: string } & Pick<OpenApiOptions, "errorForm">,
): JsonObject {
  const writer = new SchemaWriter(NAMED_SCHEMAS);
  const paths: Record<string, Record<string, JsonObject>> = {};
  for (const described of routes.filter((candidate) => !candidate.hidden)) {
    const path = described.path.replaceAll(/:(\w+)/g, "{$1}");
    const item = paths[path] ?? {};
    item[described.method.toLowerCase()] = operationObject(described, writer, options.errorForm(described.path));
    paths[path] = item;
  }
  return {
    openapi: "3.1.0",
    info: {
      title: "Coppice",
      version: options.version,
      description: "Runs code in VM-isolated sandboxes whose file systems branch like Git.",
      license: { name: "Apache-2.0", identifier: "Apache-2.0" },
    },
    servers: [{ url: options.url }],
    tags: tagObjects(routes),
    security: [{ bearer: [] }],
    paths,
    components: {
      securitySchemes: {
        bearer: {
          type: "http",
          scheme: "bearer",
          bearerFormat: "JWT",
          description: "issued by `coppice token create`",
        },
      },
      schemas: writer.components,
    },
  };
}

const TAG_DESCRIPTIONS: Readonly<Record<string, string>> = {
  Images: "file systems to start from, imported or captured",
  Files: "input files, by identifier or by hash",
  Instances: "runs of a command, each in a machine of its own",
  Sandboxes: "machines that live on an image, with saved states to pause, resume and roll back",
  Operations: "long-running work: imports and instances",
  Inspection: "the files of an image, read without starting a machine",
  ConTree: "the same service on the wire of the public ConTree clients",
  MCP: "the same service for agents, by the Model Context Protocol",
  Operator: "the appliance as a whole, for its operator",
  Service: "the service itself",
};

function tagObjects(routes: readonly Route[]): JsonObject[] {
  const used = new Set(routes.map(({ tag }) => tag));
  return [...used].map((name) => ({ name, description: TAG_DESCRIPTIONS[name] ?? name }));
}

function operationObject(described: Route, writer: SchemaWriter, errors: ErrorForm): JsonObject {
  const { id, tag, summary, scope, body } = described;
  const parameters = [
    ...pathParameters(described.path),
    ...queryParameters(described, writer),
    ...headerParameters(described.requestHeaders),
  ];
  return {
    operationId: id,
    tags: [tag],
    summary,
    ...(scope === null ? { security: [] } : { description: scopeText(scope) }),
    ...(parameters.length === 0 ? {} : { parameters }),
    ...(body === null ? {} : { requestBody: requestBody(described, writer) }),
    responses: responseObjects(described, writer, errors),
  };
}

function scopeText(scope: Exclude<Route["scope"], null>): string {
  return scope === ANY_TOKEN ? "The token may have any scopes." : `The token must allow \`${scope}\`.`;
}

function pathParameters(path: string): JsonObject[] {
  return [...path.matchAll(/:(\w+)/g)].map(([, name = ""]) => {
    const { description, schema } = pathParameter(name);
    return { name, in: "path", required: true, description, schema };
  });
}

function queryParameters({ id, query }: Route, writer: SchemaWriter): JsonObject[] {
  if (query === null) return [];
  const required = new Set<string>(query.required ?? []);
  return Object.entries(query.properties as Record<string, TSchema>).map(([name, schema]) => {
    const written = writer.write(schema, capitalized(id) + capitalized(name));
    const { description = schema.description ?? name, examples: _examples, ...rest } = written;
    // The names of the properties are those of the parameters.
    const style = schema[PREFIX_KEYWORD] === undefined ? {} : { style: "form", explode: true };
    return { name, in: "query", required: required.has(name), description, ...style, schema: rest };
  });
}

function headerParameters(headers: Route["requestHeaders"]): JsonObject[] {
  return Object.entries(headers).map(([name, description]) => {
    return { name, in: "header", required: false, description, schema: { type: "string" } };
  });
}

function requestBody({ id, body }: Route, writer: SchemaWriter): JsonObject {
  if (body === RAW_BODY || body === null) {
    const bytes = { type: "string", format: "binary", description: "the raw bytes" };
    return { required: true, description: "the raw bytes", content: { "application/octet-stream": { schema: bytes } } };
  }
  const schema = writer.write(body, `${capitalized(id)}Request`);
  return { required: true, content: { "application/json": { schema } } };
}

function responseObjects(described: Route, writer: SchemaWriter, errors: ErrorForm): JsonObject {
  const responses: Record<string, JsonObject> = {};
  const write = (spec: ResponseSpec, name: string): JsonObject =>
    responseObject(spec, (schema) => writer.write(schema, name));
  for (const [status, spec] of Object.entries(described.responses)) {
    responses[status] = write(spec, `${capitalized(described.id)}Response`);
  }
  for (const [status, codes] of Map.groupBy(errorsOf(described), (code) => errors.statusOf[code])) {
    const spec: ResponseSpec = {
      description: codes.map((code) => `\`${code}\`: ${ERROR_DESCRIPTIONS[code]}`).join("; "),
      ...(described.method === "HEAD" ? {} : { content: { "application/json": errors.schema } }),
      headers: Object.assign({}, ...codes.map((code) => ERROR_HEADERS[code])),
    };
    responses[status] = write(spec, `${capitalized(described.tag)}Error`);
  }
  return responses;
}

/** Every error that a route can answer with, the common ones included. */
export function errorsOf(described: Route): ErrorCode[] {
  const codes = new Set<ErrorCode>(described.errors);
  if (described.scope !== null) {
    for (const code of ["unauthorized", "internal_error"] as const) codes.add(code);
    if (described.scope !== ANY_TOKEN) codes.add("forbidden");
  }
  if (described.query !== null || described.body !== null || described.path.includes(":")) {
    codes.add("validation_error");
  }
  if (described.body !== null) codes.add("payload_too_large");
  return [...codes].sort((a, b) => STATUS_OF_ERROR[a] - STATUS_OF_ERROR[b]);
}

function responseObject(spec: ResponseSpec, write: (schema: TSchema) => JsonObject): JsonObject {
  const content = Object.entries(spec.content ?? {}).map(([type, schema]) => [type, { schema: write(schema) }]);
  const headers = Object.entries({ ...spec.headers, ...REQUEST_ID_HEADER }).map(([name, description]) => [
    name,
    { description, schema: { type: "string" } },
  ]);
  return {
    description: spec.description,
    headers: Object.fromEntries(headers) as JsonObject,
    ...(content.length === 0 ? {} : { content: Object.fromEntries(content) as JsonObject }),
  };
}
