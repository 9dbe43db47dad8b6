import type { Static, TObject, TSchema } from "@sinclair/typebox";
import type { ErrorCode } from "../domain/errors.ts";
import type { ByteString } from "../domain/guest-path.ts";
import type { Scope } from "../domain/scope.ts";
import type { Principal } from "../service/parts.ts";
import type { Reply } from "./reply.ts";

export const METHODS = ["GET", "HEAD", "POST", "PATCH", "DELETE"] as const;
export type Method = (typeof METHODS)[number];

/** Body that is taken as it comes, as a stream. */
export const RAW_BODY = "raw";
export type BodySpec = TSchema | typeof RAW_BODY | null;

/** One answer of a route, for the API description and for the tests that hold answers to it. */
export interface ResponseSpec {
  readonly description: string;
  /** by content type; absent: the answer has no body */
  readonly content?: Readonly<Record<string, TSchema>>;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Parameters taken as bytes arrive as such; all others as their schema says. */
export type QueryOf<Q extends TObject> = {
  [Name in keyof Static<Q>]: Name extends "path" ? ByteString : Static<Q>[Name];
};

export interface RequestContext<Q, B> {
  readonly request: Request;
  readonly principal: Principal;
  /** percent-decoded, otherwise as they came */
  readonly params: Readonly<Record<string, string>>;
  readonly query: Q;
  readonly body: B;
}

/** A route as it is served, described and tested: everything follows from this one value. */
export interface Route {
  readonly method: Method;
  /** with `:name` for parameters; every parameter is a UUID */
  readonly path: string;
  /** what the token must allow; null: no token is asked for */
  readonly scope: Scope | null;
  readonly id: string;
  readonly tag: string;
  readonly summary: string;
  readonly query: TObject | null;
  readonly body: BodySpec;
  readonly bodyBytesMax: number;
  readonly responses: Readonly<Record<number, ResponseSpec>>;
  /** errors of this route besides those that all have */
  readonly errors: readonly ErrorCode[];
  /** left out of the API description: the same thing under a second spelling */
  readonly hidden: boolean;
  readonly handle: (context: RequestContext<never, never>) => Reply | Promise<Reply>;
}

/** JSON bodies without an own limit are small. */
export const JSON_BODY_BYTES_DEFAULT = 1_048_576;

interface RouteOptions<Q extends TObject, B extends BodySpec> {
  method: Method;
  path: string;
  scope: Scope | null;
  id: string;
  tag: string;
  summary: string;
  query?: Q;
  body?: B;
  bodyBytesMax?: number;
  responses: Route["responses"];
  errors?: readonly ErrorCode[];
  hidden?: boolean;
  handle: (context: RequestContext<QueryOf<Q>, BodyOf<B>>) => Reply | Promise<Reply>;
}

type BodyOf<B extends BodySpec> = B extends TSchema ? Static<B> : B extends typeof RAW_BODY ? BodyStream : null;
export type BodyStream = AsyncIterable<Uint8Array>;

// biome-ignore lint/complexity/noBannedTypes: a route without a query has no parameters at all.
export function route<Q extends TObject = TObject<{}>, B extends BodySpec = null>(options: RouteOptions<Q, B>): Route {
  return {
    ...options,
    query: options.query ?? null,
    body: options.body ?? null,
    bodyBytesMax: options.bodyBytesMax ?? JSON_BODY_BYTES_DEFAULT,
    errors: options.errors ?? [],
    hidden: options.hidden ?? false,
    // The dispatcher builds query and body by these very schemas, which the erased type cannot show.
    handle: options.handle as Route["handle"],
  };
}

/** The same route under a second path, in the API description only once. */
export function alias(original: Route, path: string): Route {
  return { ...original, path, hidden: true };
}
