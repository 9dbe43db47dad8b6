import { ApiError } from "../domain/errors.ts";
import { UUID_PATTERN } from "../domain/ids.ts";
import type { Principal } from "../service/parts.ts";
import { ownTurn } from "../system/turns.ts";
import { authorize } from "./auth.ts";
import { bodyStream, readJson } from "./body.ts";
import type { BodyRooms } from "./body-room.ts";
import { queryReader, rawQuery } from "./query.ts";
import type { Reply } from "./reply.ts";
import { RAW_BODY, type Route } from "./route.ts";
import { checker } from "./schema.ts";

/** Elysia takes no origin to be shorter than this and looks for the path behind it, in `characters`. */
const ELYSIA_ORIGIN_CHARACTERS = 11;

const uuidExpression = new RegExp(UUID_PATTERN);

/** Runs a route for a request that has a principal: authorises, reads, checks, and hands over. */
export type Runner = (request: Request, principal: Principal | null, params: Record<string, string>) => Promise<Reply>;

/**
 * Prepares a route once: its schemas are compiled here, not per request.
 * @param rooms where bodies are taken in
 */
export function runnerOf(route: Route, rooms: BodyRooms): Runner {
  const readQuery = route.query === null ? null : queryReader(route.query);
  const readBody = bodyReader(route);
  const writes = route.method !== "GET" && route.method !== "HEAD";
  return async (request, principal, params) => {
    if (route.scope !== null) {
      if (principal === null) throw new ApiError("unauthorized", "missing or invalid bearer token");
      authorize(principal, route.scope);
    }
    for (const [name, value] of Object.entries(params)) {
      if (!uuidExpression.test(value)) {
        throw new ApiError("validation_error", `${name} must be a UUID`, { field: name });
      }
      params[name] = value.toLowerCase();
    }
    const query = readQuery === null ? {} : readQuery(rawQuery(request.url));
    const handle = async (body: unknown): Promise<Reply> => {
      // All that came at once would otherwise write in one turn.
      if (writes) await ownTurn(principal?.accountId);
      // Routes without a scope never look at the principal; all others have one by now.
      const context = { request, principal, params, query, body } as unknown as Parameters<Route["handle"]>[0];
      return await route.handle(context);
    };
    if (readBody === null) return await handle(null);
    using held = new DisposableStack();
    const makeRoom = async (bytes: number): Promise<void> => {
      if (principal !== null) held.use(await rooms.take(principal.accountId, bytes, request.signal));
    };
    return await handle(await readBody(request, makeRoom));
  };
}

type BodyReader = (request: Request, makeRoom: (bytes: number) => Promise<void>) => Promise<unknown>;

function bodyReader(route: Route): BodyReader | null {
  const { body, bodyBytesMax } = route;
  if (body === null) return null;
  if (body === RAW_BODY) return async (request) => bodyStream(request);
  const check = checker(body);
  return async (request, makeRoom) => {
    const value = await readJson(request, { limitBytes: bodyBytesMax, makeRoom });
    check(value);
    return value;
  };
}

/** Finds routes by path for what the server's router does not do: HEAD, misread URLs, and a path's methods. */
export class RouteTable {
  readonly #entries: readonly { route: Route; expression: RegExp; names: readonly string[] }[];
  /** paths without parameters */
  readonly #literals: ReadonlySet<string>;

  constructor(routes: readonly Route[]) {
    this.#literals = new Set(routes.map(({ path }) => path).filter((path) => !path.includes(":")));
    this.#entries = routes.map((route) => {
      const names = [...route.path.matchAll(/:(\w+)/g)].map((match) => match[1] ?? "");
      const source = route.path.replaceAll(/[.\\+*?^$()[\]{}|]/g, "\\$&").replaceAll(/:\w+/g, "([^/]+)");
      return { route, expression: new RegExp(`^${source}$`), names };
    });
  }

  /** The route of a method and path; HEAD falls back to GET. */
  find(method: string, path: string): { route: Route; params: Record<string, string> } | null {
    const found = this.#match(method, path);
    return found === null && method === "HEAD" ? this.#match("GET", path) : found;
  }

  /** Methods that a path knows, sorted; empty for an unknown path. */
  allowed(path: string): string[] {
    const methods = new Set<string>();
    for (const { route, expression } of this.#entries) {
      if (expression.test(path) && !this.isShadowed(route, path)) methods.add(route.method);
    }
    if (methods.has("GET")) methods.add("HEAD");
    return [...methods].sort();
  }

  /** True when a path that is a route of its own only looks like one with a parameter. */
  isShadowed(route: Route, path: string): boolean {
    return this.#literals.has(path) && route.path !== path;
  }

  #match(method: string, path: string): { route: Route; params: Record<string, string> } | null {
    for (const { route, expression, names } of this.#entries) {
      const match = route.method === method ? expression.exec(path) : null;
      if (match === null || this.isShadowed(route, path)) continue;
      const params = Object.fromEntries(names.map((name, index) => [name, decodeSegment(match[index + 1] ?? "")]));
      return { route, params };
    }
    return null;
  }
}

/** A segment that cannot be decoded stays as it is; it is no UUID either way. */
function decodeSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch (error) {
    if (error instanceof URIError) return segment;
    throw error;
  }
}

/** Path of a request's URL as the client spelled it, without the query. */
export function pathOf(url: string): string {
  // A request without a Host header has no more than its path.
  const start = url.startsWith("/") ? 0 : url.indexOf("/", url.indexOf("://") + 3);
  const query = url.indexOf("?", start);
  const fragment = url.indexOf("#", start);
  if (fragment === -1) return query === -1 ? url.slice(start) : url.slice(start, query);
  return url.slice(start, query === -1 ? fragment : Math.min(query, fragment));
}

/**
 * Path that Elysia routes a URL by. It is another one than {@link pathOf} finds where the host has under four
 * characters, where there is no Host header, and where the client sends a fragment.
 */
export function elysiaPathOf(url: string): string {
  const start = url.indexOf("/", ELYSIA_ORIGIN_CHARACTERS);
  const query = url.indexOf("?", start + 1);
  return url.substring(start, query === -1 ? undefined : query);
}
