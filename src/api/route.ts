import { type Static, type TObject, type TSchema, type TUnsafe, Type } from "@sinclair/typebox";
import type { ErrorCode } from "../domain/errors.ts";
import { given } from "../domain/given.ts";
import type { Scope } from "../domain/scope.ts";

/** One response of a route, for the API description, against which tests check every response. */
export interface ResponseSpec<Content extends Readonly<Record<string, TSchema>> = Readonly<Record<string, TSchema>>> {
  readonly description: string;
  /** schemas by content type; absent: the response has no body */
  readonly content?: Content;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Description of a route, besides its path and the schemas of its query and body. */
export interface About<Responses extends Readonly<Record<number, ResponseSpec>>> {
  readonly id: string;
  readonly tag: string;
  readonly summary: string;
  /** headers that the route reads, with a description of each */
  readonly requestHeaders?: Readonly<Record<string, string>>;
  readonly responses: Responses;
  /** errors of this route besides those of all routes */
  readonly errors?: readonly ErrorCode[];
  /** true for a second spelling of a path, which the API description leaves out */
  readonly hidden?: boolean;
}

/** Marks a body of raw bytes, which is read as a stream. */
export const RAW_BODY = "raw";

/** Marks a route that every valid token may use, whatever its scopes. */
export const ANY_TOKEN = "any";
export type RouteScope = Scope | typeof ANY_TOKEN;

/** The complete description of a route, read from the routes that Elysia serves. */
export interface Route extends Required<About<Readonly<Record<number, ResponseSpec>>>> {
  readonly method: string;
  /** path with `:name` for parameters, which `pathParameter` describes */
  readonly path: string;
  /** the scope that the token must allow; null: no token is needed */
  readonly scope: RouteScope | null;
  readonly query: TObject | null;
  readonly body: TSchema | typeof RAW_BODY | null;
  /** longest JSON body, in `bytes`; 0 for a route without one */
  readonly bodyBytesMax: number;
}

type JsonStatus<Responses, Status> = Status extends keyof Responses
  ? Responses[Status] extends { readonly content: { readonly "application/json": infer Schema extends TSchema } }
    ? Schema
    : never
  : never;

/**
 * A schema that shows Elysia's types only the type of its values. Elysia would infer that type a second time, slowly, and
 * lose the values of optional records.
 */
type Typed<Schema extends TSchema> = TUnsafe<Static<Schema>>;

/** Schemas of the JSON responses, by status. */
type JsonSchemas<Responses> = {
  [Status in keyof Responses as JsonStatus<Responses, Status> extends never ? never : Status]: Typed<
    JsonStatus<Responses, Status>
  >;
};

/** The `detail` of a route; macros add to it. */
export interface RouteDetail {
  readonly operationId?: string;
  /** a function, because Elysia merges the details of plugins but leaves functions as they are */
  readonly about?: () => About<Readonly<Record<number, ResponseSpec>>>;
  scope?: RouteScope;
  rawBody?: boolean;
  bodyBytesMax?: number;
}

/**
 * Options of a route that describe it. Responses have the types of their schemas, in the typed client, too. Elysia does not
 * get the schemas themselves: it would compile and store a validator for each, and check every response. The tests validate
 * responses instead.
 */
export function about<const Responses extends Readonly<Record<number, ResponseSpec>>>(
  description: About<Responses>,
): { response: JsonSchemas<Responses>; detail: object } {
  const detail: RouteDetail = { operationId: description.id, about: () => description };
  return { detail } as { response: JsonSchemas<Responses>; detail: object };
}

/** The same options for a second spelling of the path, which the API description leaves out. */
export function unlisted<Options extends { detail: object }>(options: Options): Options {
  const detail = options.detail as RouteDetail;
  const description = detail.about?.();
  if (description === undefined) return options;
  return { ...options, detail: { ...detail, about: () => ({ ...description, hidden: true }) } };
}

/** Key under which a schema of `checked` keeps its declared schema. */
const DECLARED = Symbol("declared");

/**
 * The schema as Elysia must compile it: it allows unknown properties and sets no defaults, because these depend on the
 * operator's limits. Every part has an error text, even if it is empty: without one, Elysia writes the whole value as JSON,
 * which is slow, and fails for a deeply nested value.
 */
export function checked<Schema extends TSchema>(schema: Schema): Typed<Schema> {
  const open = { ...compiled(schema), additionalProperties: true };
  return Object.assign(open, { [DECLARED]: schema }) as unknown as Typed<Schema>;
}

/** The schema as it was declared. */
export function declared(schema: TSchema): TSchema {
  return (schema as TSchema & { readonly [DECLARED]?: TSchema })[DECLARED] ?? schema;
}

function compiled(schema: TSchema): TSchema {
  const { default: _default, ...kept } = schema;
  const copy = { error: "", ...kept } as unknown as TSchema;
  if (schema["properties"] !== undefined) copy["properties"] = mapped(schema["properties"], compiled);
  if (schema["patternProperties"] !== undefined) {
    copy["patternProperties"] = mapped(schema["patternProperties"], compiled);
  }
  if (schema["items"] !== undefined) copy["items"] = compiled(schema["items"]);
  // A default anywhere makes Elysia accept any value in place of an object.
  if (schema["anyOf"] !== undefined) copy["anyOf"] = schema["anyOf"].map(compiled);
  return copy;
}

function mapped(schemas: Record<string, TSchema>, map: (schema: TSchema) => TSchema): Record<string, TSchema> {
  return Object.fromEntries(Object.entries(schemas).map(([name, schema]) => [name, map(schema)]));
}

/** The part of Elysia's routes that is read here. */
export interface ServedRoute {
  readonly method: string;
  readonly path: string;
  readonly hooks: unknown;
}

/** A route of Elysia's whose compiled function runs all its hooks for an existing context. */
export interface RunnableRoute extends ServedRoute {
  compile(): (context: unknown) => Response | Promise<Response>;
}

/** Descriptions of the routes of an application; a route without one is left out. */
export function describe(served: readonly ServedRoute[]): Route[] {
  return served.flatMap(({ method, path, hooks }) => {
    const { detail, query, body } = hooks as { detail?: RouteDetail; query?: TObject; body?: TSchema };
    const description = detail?.about?.();
    if (detail === undefined || description === undefined) return [];
    return [
      {
        errors: [],
        hidden: false,
        requestHeaders: {},
        ...description,
        method,
        path,
        scope: detail.scope ?? null,
        query: query === undefined ? null : (declared(query) as TObject),
        bodyBytesMax: detail.bodyBytesMax ?? 0,
        body: detail.rawBody === true ? RAW_BODY : body === undefined ? null : declared(body),
      },
    ];
  });
}

/** Description of a JSON response. */
export function jsonSpec<Schema extends TSchema>(
  description: string,
  schema: Schema,
  headers?: Readonly<Record<string, string>>,
): ResponseSpec<{ readonly "application/json": Schema }> & {
  readonly content: { readonly "application/json": Schema };
} {
  return { description, content: { "application/json": schema }, ...given({ headers }) };
}

export const OPERATION_LOCATION = { Location: "address of the operation that does the work" };
export const RETRY_AFTER = {
  "Retry-After": "recommended time until the next poll, in seconds; absent when the operation has ended",
};

/** JSON of any shape. */
export const AnyObject = Type.Record(Type.String(), Type.Unknown());
