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
  const withoutBody = (scope: Scope) => {
    const route = new RouteAccess(requests, { scope });
    return {
      introspect: route.declare,
      transform: (context: Reading) => {
        context.query = route.admit(context.request, context.params);
      },
    };
  };
  const resolveInTurn = async ({ request }: { readonly request: Request }) => {
    const principal = requests.principal(request);
    // All that came at once would otherwise write in one turn.
    await ownTurn(principal.accountId);
    return { principal };
  };
  return new Elysia({ name: "access" }).macro({
    reads: (scope: Scope) => ({
      ...withoutBody(scope),
      resolve: ({ request }) => ({ principal: requests.principal(request) }),
    }),
    writes: (scope: Scope) => ({ ...withoutBody(scope), resolve: resolveInTurn }),
    takes: ({ scope, bytesMax = JSON_BODY_BYTES_DEFAULT }: Taking) => {
      const route = new RouteAccess(requests, { scope, bodyBytesMax: bytesMax });
      return {
        introspect: route.declare,
        parse: async (context: Reading) => {
          const { request } = context;
          context.query = route.admit(request, context.params);
          const { accountId } = requests.principal(request);
          const makeRoom = async (bytes: number): Promise<void> => {
            requests.hold(request, await rooms.take(accountId, bytes, request.signal));
          };
          return await readJson(request, { limitBytes: bytesMax, makeRoom });
        },
        resolve: resolveInTurn,
      };
    },
    receives: (scope: Scope) => {
      const route = new RouteAccess(requests, { scope, rawBody: true });
      return {
        introspect: route.declare,
        parse: async (context: Reading) => {
          const { request } = context;
          context.query = route.admit(request, context.params);
          const { accountId } = requests.principal(request);
          requests.hold(request, await rooms.receive(accountId, announcedLength(request), request.signal));
          // The handler takes the bytes as they come; anything but undefined keeps Elysia from reading them.
          return null;
        },
        resolve: resolveInTurn,
      };
    },
  });
}

/** The first half of every macro, for one route: who may call it, and its parameters and query. */
class RouteAccess {
  readonly #requests: Requests;
  readonly #detail: RouteDetail & { readonly scope: Scope };
  #read: ((raw: string) => Record<string, unknown>) | null = null;

  constructor(requests: Requests, detail: RouteDetail & { readonly scope: Scope }) {
    this.#requests = requests;
    this.#detail = detail;
  }

  /** Called once, when the route is declared. */
  readonly declare = (options: RouteOptions): void => {
    options.detail = { ...options.detail, ...this.#detail };
    if (options.query !== undefined) this.#read = queryReader(declared(options.query) as TObject);
  };

  /**
   * The query of a caller who has the scope; parameters of the path are brought into lower case.
   * @throws ApiError `unauthorized`, `forbidden`, `validation_error`
   */
  admit(request: Request, params: Record<string, string>): Record<string, unknown> {
    this.#requests.allowed(request, this.#detail.scope);
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
