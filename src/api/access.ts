import type { TObject } from "@sinclair/typebox";
import { Elysia } from "elysia";
import type { Scope } from "../domain/scope.ts";
import { ownTurn } from "../system/turns.ts";
import { announcedLength, readJson } from "./body/body.ts";
import type { BodyRooms } from "./body/room.ts";
import { readParameters } from "./parameters.ts";
import { queryReader, rawQuery } from "./query.ts";
import type { RequestTracker } from "./request-tracker.ts";
import { ANY_TOKEN, declared, type RouteDetail, type RouteScope } from "./route.ts";

/** Limit of JSON bodies whose route does not set one. */
const JSON_BODY_BYTES_DEFAULT = 1_048_576;

/** Options of a route that reads a JSON body. */
export interface JsonBodyOptions {
  readonly scope: RouteScope;
  /** longest body, in `bytes` */
  readonly bytesMax?: number;
  /** true: a guest decides how long the answer takes, so the body has room of its own, apart from quick requests */
  readonly waitsForGuest?: boolean;
  /** true: an empty body counts as an empty object */
  readonly mayBeEmpty?: boolean;
}

/** The part of Elysia's context that a macro reads and changes. */
interface MacroContext {
  readonly request: Request;
  readonly params: Record<string, string>;
  query: unknown;
}

/** Options of the route to which a macro belongs. */
interface RouteOptions {
  readonly query?: TObject;
  detail?: RouteDetail;
}

/**
 * Macros that check the scope of a route. Each route uses one: `reads` and `writes` for a route without a body, `takes` for
 * a JSON body, `receives` for an upload of raw bytes, `streams` for raw bytes that may arrive as long as an instance runs.
 * They refuse a caller before anything of the request is read: in `parse`, the first step of a request with a body, or in
 * `transform`, the first step of any other. Both throw, because Elysia would treat a returned status as the body and run
 * the handler. Then the query is read as bytes, and Elysia checks the query and the body against the route's schemas.
 *
 * `checkParameters` normalises the parameters of a path, and throws for invalid ones.
 *
 * No hook passes on its whole context: Elysia would then prepare every part of it for every request, including the cookies
 * and a copy of all headers.
 */
export function accessPlugin(
  requests: RequestTracker,
  rooms: BodyRooms,
  checkParameters: (params: Record<string, string>) => void = readParameters,
) {
  const access = { requests, checkParameters };
  const withoutBody = (scope: RouteScope) => {
    const route = new RouteAccess(access, { scope });
    return {
      introspect: route.declare,
      transform: (context: MacroContext) => {
        context.query = route.admit(context.request, context.params);
      },
    };
  };
  const resolveInTurn = async ({ request }: { readonly request: Request }) => {
    const principal = requests.principal(request);
    // Otherwise all requests that arrive together would write in one turn of the event loop.
    await ownTurn(principal.accountId);
    return { principal };
  };
  const ofRawBody = (scope: Scope, makeRoom: BodyRooms["receive"]) => {
    const route = new RouteAccess(access, { scope, rawBody: true });
    return {
      introspect: route.declare,
      parse: async (context: MacroContext) => {
        const { request } = context;
        context.query = route.admit(request, context.params);
        const { accountId } = requests.principal(request);
        requests.hold(request, await makeRoom(accountId, announcedLength(request), request.signal));
        // The handler reads the bytes itself; any result but undefined keeps Elysia from reading them.
        return null;
      },
      resolve: resolveInTurn,
    };
  };
  return new Elysia({ name: "access" }).macro({
    reads: (scope: RouteScope) => ({
      ...withoutBody(scope),
      resolve: ({ request }) => ({
        principal: requests.principal(request),
        isAllowed: () => requests.isAllowed(request),
      }),
    }),
    writes: (scope: RouteScope) => ({ ...withoutBody(scope), resolve: resolveInTurn }),
    takes: ({
      scope,
      bytesMax = JSON_BODY_BYTES_DEFAULT,
      waitsForGuest = false,
      mayBeEmpty = false,
    }: JsonBodyOptions) => {
      const route = new RouteAccess(access, { scope, bodyBytesMax: bytesMax });
      return {
        introspect: route.declare,
        parse: async (context: MacroContext) => {
          const { request } = context;
          context.query = route.admit(request, context.params);
          const { accountId } = requests.principal(request);
          const makeRoom = async (bytes: number): Promise<void> => {
            const room = waitsForGuest
              ? rooms.takeLong(accountId, bytes, request.signal)
              : rooms.take(accountId, bytes, request.signal);
            requests.hold(request, await room);
          };
          return await readJson(request, { limitBytes: bytesMax, makeRoom, mayBeEmpty });
        },
        resolve: resolveInTurn,
      };
    },
    receives: (scope: Scope) => ofRawBody(scope, (...room) => rooms.receive(...room)),
    streams: (scope: Scope) => ofRawBody(scope, (...room) => rooms.stream(...room)),
  });
}

interface RouteAccessParts {
  readonly requests: RequestTracker;
  readonly checkParameters: (params: Record<string, string>) => void;
}

/** The part that all macros share: checks the scope of one route, and reads its path parameters and query. */
class RouteAccess {
  readonly #requests: RequestTracker;
  readonly #checkParameters: (params: Record<string, string>) => void;
  readonly #detail: RouteDetail & { readonly scope: RouteScope };
  #read: ((raw: string) => Record<string, unknown>) | null = null;

  constructor({ requests, checkParameters }: RouteAccessParts, detail: RouteDetail & { readonly scope: RouteScope }) {
    this.#requests = requests;
    this.#checkParameters = checkParameters;
    this.#detail = detail;
  }

  /** Called once, when the route is declared. */
  readonly declare = (options: RouteOptions): void => {
    options.detail = { ...options.detail, ...this.#detail };
    if (options.query !== undefined) this.#read = queryReader(declared(options.query) as TObject);
  };

  /**
   * Checks the scope, normalises the path parameters, and returns the query.
   * @throws ApiError `unauthorized`, `forbidden`, `validation_error`
   */
  admit(request: Request, params: Record<string, string>): Record<string, unknown> {
    const { scope } = this.#detail;
    if (scope === ANY_TOKEN) this.#requests.principal(request);
    else this.#requests.allowed(request, scope);
    this.#checkParameters(params);
    return this.#read === null ? {} : this.#read(rawQuery(request.url));
  }
}
