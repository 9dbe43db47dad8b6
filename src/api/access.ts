import type { TObject } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { ApiError } from "../domain/errors.ts";
import { UUID_PATTERN } from "../domain/ids.ts";
import type { Scope } from "../domain/scope.ts";
import { ownTurn } from "../system/turns.ts";
import { announcedLength, readJson } from "./body.ts";
import type { BodyRooms } from "./body-room.ts";
import { queryReader, rawQuery } from "./query.ts";
import type { Requests } from "./requests.ts";
import { declared, type RouteDetail } from "./route.ts";

const uuidExpression = new RegExp(UUID_PATTERN);

/** JSON bodies without an own limit are small. */
const JSON_BODY_BYTES_DEFAULT = 1_048_576;

/** A scope, and the longest JSON body that is read, in `bytes`. */
export interface Taking {
  readonly scope: Scope;
  readonly bytesMax?: number;
}

/** What a macro may read and replace of its route's request. */
interface Reading {
  readonly request: Request;
  readonly params: Record<string, string>;
  query: unknown;
}

/** The options of the route that a macro belongs to. */
interface RouteOptions {
  readonly query?: TObject;
  detail?: RouteDetail;
}

/**
 * The scopes of routes, one of these for each: `reads` and `writes` for a route without a body, `takes` for one with JSON,
 * `receives` for one with raw bytes. A caller is refused before anything of its request is looked at: in `parse`, the
 * first step of a request with a body, and in `transform`, the first step of any other. Both throw, because a status that
 * is returned there becomes the body, and the handler runs. Behind that, the query is read as bytes, and Elysia checks
 * it and the body by the schemas of the route.
 *
 * No hook hands its context on: for every request Elysia would then prepare all that somebody might look at, such as the
 * cookies and a copy of all headers.
 */
export function accessPlugin(requests: Requests, rooms: BodyRooms) {
  return new Elysia({ name: "access" }).macro({
    reads: (scope: Scope) => {
      const reader = new QueryReading();
      return {
        introspect: (options: RouteOptions) => reader.prepare(options, { scope }),
        transform: (context: Reading) => {
          requests.allowed(context.request, scope);
          context.query = reader.read(context.request, context.params);
        },
        resolve: ({ request }) => ({ principal: requests.principal(request) }),
      };
    },
    writes: (scope: Scope) => {
      const reader = new QueryReading();
      return {
        introspect: (options: RouteOptions) => reader.prepare(options, { scope }),
        transform: (context: Reading) => {
          requests.allowed(context.request, scope);
          context.query = reader.read(context.request, context.params);
        },
        resolve: async ({ request }) => {
          const principal = requests.principal(request);
          // All that came at once would otherwise write in one turn.
          await ownTurn(principal.accountId);
          return { principal };
        },
      };
    },
    takes: ({ scope, bytesMax = JSON_BODY_BYTES_DEFAULT }: Taking) => {
      const reader = new QueryReading();
      return {
        introspect: (options: RouteOptions) => reader.prepare(options, { scope, bodyBytesMax: bytesMax }),
        parse: async (context: Reading) => {
          const { request } = context;
          const { accountId } = requests.allowed(request, scope);
          context.query = reader.read(request, context.params);
          const makeRoom = async (bytes: number): Promise<void> => {
            requests.hold(request, await rooms.take(accountId, bytes, request.signal));
          };
          return await readJson(request, { limitBytes: bytesMax, makeRoom });
        },
        resolve: async ({ request }) => {
          const principal = requests.principal(request);
          await ownTurn(principal.accountId);
          return { principal };
        },
      };
    },
    receives: (scope: Scope) => {
      const reader = new QueryReading();
      return {
        introspect: (options: RouteOptions) => reader.prepare(options, { scope, rawBody: true }),
        parse: async (context: Reading) => {
          const { request } = context;
          const { accountId } = requests.allowed(request, scope);
          context.query = reader.read(request, context.params);
          requests.hold(request, await rooms.receive(accountId, announcedLength(request), request.signal));
          // The handler takes the bytes as they come; anything but undefined keeps Elysia from reading them.
          return null;
        },
        resolve: async ({ request }) => {
          const principal = requests.principal(request);
          await ownTurn(principal.accountId);
          return { principal };
        },
      };
    },
  });
}

/** Reads parameters and query of one route. */
class QueryReading {
  #read: ((raw: string) => Record<string, unknown>) | null = null;

  /** Called once, when the route is declared. */
  prepare(options: RouteOptions, detail: RouteDetail): void {
    options.detail = { ...options.detail, ...detail };
    if (options.query !== undefined) this.#read = queryReader(declared(options.query) as TObject);
  }

  /**
   * The query; parameters of the path are brought into lower case.
   * @throws ApiError `validation_error`
   */
  read(request: Request, params: Record<string, string>): Record<string, unknown> {
    for (const name in params) {
      const value = params[name] ?? "";
      if (!uuidExpression.test(value)) {
        throw new ApiError("validation_error", `${name} must be a UUID`, { field: name });
      }
      params[name] = value.toLowerCase();
    }
    return this.#read === null ? {} : this.#read(rawQuery(request.url));
  }
}
