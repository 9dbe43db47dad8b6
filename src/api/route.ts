import { type TObject, type TSchema, Type } from "@sinclair/typebox";
import type { ErrorCode } from "../domain/errors.ts";
import type { Scope } from "../domain/scope.ts";

/** One answer of a route, for the API description and for the tests that hold answers to it. */
export interface ResponseSpec<Content extends Readonly<Record<string, TSchema>> = Readonly<Record<string, TSchema>>> {
  readonly description: string;
  /** by content type; absent: the answer has no body */
  readonly content?: Content;
  readonly headers?: Readonly<Record<string, string>>;
}

/** What a route says of itself beside its path and the schemas of what it reads. */
export interface About<Responses extends Readonly<Record<number, ResponseSpec>>> {
  readonly id: string;
  readonly tag: string;
  readonly summary: string;
  readonly responses: Responses;
  /** errors of this route besides those that all have */
  readonly errors?: readonly ErrorCode[];
  /** left out of the API description: the same thing under a second spelling */
  readonly hidden?: boolean;
}

/** Body that is taken as it comes, as a stream. */
export const RAW_BODY = "raw";

/** A route as it is described and tested, read from the route that Elysia serves. */
export interface Route extends Required<About<Readonly<Record<number, ResponseSpec>>>> {
  readonly method: string;
  /** with `:name` for parameters; every parameter is a UUID */
  readonly path: string;
  /** what the token must allow; null: no token is asked for */
  readonly scope: Scope | null;
  readonly query: TObject | null;
  readonly body: TSchema | typeof RAW_BODY | null;
  /** longest JSON body that is read, in `bytes`; 0 where there is none */
  readonly bodyBytesMax: number;
}

type JsonStatus<Responses, Status> = Status extends keyof Responses
  ? Responses[Status] extends { readonly content: { readonly "application/json": infer Schema extends TSchema } }
    ? Schema
    : never
  : never;

/** Schemas of the JSON answers, by status. */
type JsonSchemas<Responses> = {
  [Status in keyof Responses as JsonStatus<Responses, Status> extends never ? never : Status]: JsonStatus<
    Responses,
    Status
  >;
};

/** What a macro adds to the detail of its route. */
export interface RouteDetail {
  readonly operationId?: string;
  /** a function, which Elysia keeps as it is while it merges the details of plugins */
  readonly about?: () => About<Readonly<Record<number, ResponseSpec>>>;
  scope?: Scope;
  rawBody?: boolean;
  bodyBytesMax?: number;
}

/**
 * Options of a route that describe it. Answers are typed by their schemas, the typed client's too, but not checked while
 * they are served: the tests hold every answer to its schema, and a check would cost each answer a walk through it.
 */
export function about<const Responses extends Readonly<Record<number, ResponseSpec>>>(
  description: About<Responses>,
): { response: JsonSchemas<Responses>; detail: object } {
  const schemas = Object.entries(description.responses).flatMap(([status, { content }]) => {
    const schema = content?.["application/json"];
    return schema === undefined ? [] : [[status, { ...schema, noValidate: true }] as const];
  });
  const detail: RouteDetail = { operationId: description.id, about: () => description };
  return { response: Object.fromEntries(schemas) as unknown as JsonSchemas<Responses>, detail };
}

/** The options of the same thing under a second spelling of its path, which is left out of the API description. */
export function unlisted<Options extends { detail: object }>(options: Options): Options {
  const detail = options.detail as RouteDetail;
  const description = detail.about?.();
  if (description === undefined) return options;
  return { ...options, detail: { ...detail, about: () => ({ ...description, hidden: true }) } };
}

/** Holds the schema that a `checked` one was made of. */
const DECLARED = Symbol("declared");

/**
 * The schema in the form in which Elysia is to compile it: properties that it does not name pass, and nothing that is
 * absent is filled in, because the defaults depend on the operator's bounds.
 */
export function checked<Schema extends TSchema>(schema: Schema): Schema {
  const open = { ...withoutDefaults(schema), additionalProperties: true };
  return Object.assign(open, { [DECLARED]: schema }) as unknown as Schema;
}

/** The schema as it was declared. */
export function declared(schema: TSchema): TSchema {
  return (schema as TSchema & { readonly [DECLARED]?: TSchema })[DECLARED] ?? schema;
}

function withoutDefaults(schema: TSchema): TSchema {
  const { default: _default, ...kept } = schema;
  const copy = { ...kept } as unknown as TSchema;
  if (schema["properties"] !== undefined) copy["properties"] = mapped(schema["properties"], withoutDefaults);
  if (schema["patternProperties"] !== undefined) {
    copy["patternProperties"] = mapped(schema["patternProperties"], withoutDefaults);
  }
  if (schema["items"] !== undefined) copy["items"] = withoutDefaults(schema["items"]);
  return copy;
}

function mapped(schemas: Record<string, TSchema>, map: (schema: TSchema) => TSchema): Record<string, TSchema> {
  return Object.fromEntries(Object.entries(schemas).map(([name, schema]) => [name, map(schema)]));
}

/** What Elysia tells of its routes, as far as it is read here. */
export interface ServedRoute {
  readonly method: string;
  readonly path: string;
  readonly hooks: unknown;
}

/** The routes of an application that describe themselves. */
export function describe(served: readonly ServedRoute[]): Route[] {
  return served.flatMap(({ method, path, hooks }) => {
    const { detail, query, body } = hooks as { detail?: RouteDetail; query?: TObject; body?: TSchema };
    const description = detail?.about?.();
    if (detail === undefined || description === undefined) return [];
    return [
      {
        errors: [],
        hidden: false,
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

/** Description of a JSON answer. */
export function jsonSpec<Schema extends TSchema>(
  description: string,
  schema: Schema,
  headers?: Readonly<Record<string, string>>,
): ResponseSpec<{ readonly "application/json": Schema }> & {
  readonly content: { readonly "application/json": Schema };
} {
  return { description, content: { "application/json": schema }, ...(headers === undefined ? {} : { headers }) };
}

export const OPERATION_LOCATION = { Location: "address of the operation that does the work" };
export const RETRY_AFTER = {
  "Retry-After": "recommended time until the next look, in seconds; absent when the operation has ended",
};

/** JSON of any shape. */
export const AnyObject = Type.Record(Type.String(), Type.Unknown());
