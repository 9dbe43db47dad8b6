/*
 * Gaps of Elysia, and how this service closes them:
 * - HEAD of a path with parameters: Elysia runs the GET route even if the path has a HEAD route, and reads the whole body
 *   for its length. `RouteTable` finds the HEAD route, which Elysia then runs like any other.
 * - Some URLs: Elysia reads the path at the wrong offset. `elysiaPathOf` detects them, and `RouteTable` finds the route.
 * - 405 with Allow: Elysia answers 404 when a path does not have the method. `unknownRoute` names the allowed methods.
 * - A literal path that also matches a route with a parameter: Elysia runs the latter for a method that the literal path
 *   does not have. `isShadowed` detects that.
 * - Paths as bytes: Elysia decodes queries as UTF-8. `query.ts` reads them instead.
 * - Repeated parameters of a query: Elysia splits each value at its commas. `repeated` marks their schemas as converted.
 * - Parts of the context: Elysia reads the source of a hook to find which parts it needs, and prepares all of them when the
 *   hook passes its context on. `unread` keeps the source from it.
 * - Authorization before reading: Elysia reads a body before every hook except `onRequest` and `parse`, so `app.ts` and
 *   `access.ts` check the caller there.
 */
import { ApiError } from "../domain/errors.ts";

/** Elysia assumes that an origin has at least this length and looks for the path after it, in `characters`. */
const ELYSIA_ORIGIN_CHARACTERS = 11;

interface RoutePattern {
  readonly method: string;
  readonly path: string;
}

interface RouteExpression<Route> {
  readonly route: Route;
  readonly expression: RegExp;
  readonly names: readonly string[];
}

/** Finds routes by path: for HEAD, for URLs that Elysia misreads, and for the methods that a path allows. */
export class RouteTable<Route extends RoutePattern> {
  readonly #routes: readonly Route[];
  /** methods of the paths without parameters */
  readonly #literals = new Map<string, Set<string>>();
  #patterns: readonly RouteExpression<Route>[] | null = null;

  constructor(routes: readonly Route[]) {
    this.#routes = routes;
    for (const { method, path } of routes) {
      if (/[:*]/.test(path)) continue;
      const methods = this.#literals.get(path) ?? new Set();
      this.#literals.set(path, methods.add(method));
    }
  }

  /** The route of a method and path; HEAD falls back to GET. */
  find(method: string, path: string): { route: Route; params: Record<string, string> } | null {
    const match = this.#match(method, path);
    return match === null && method === "HEAD" ? this.#match("GET", path) : match;
  }

  /** Methods that a path allows, sorted; empty for an unknown path. */
  allowed(path: string): string[] {
    const methods = new Set<string>();
    for (const { route, expression } of this.#expressions()) {
      if (expression.test(path) && !this.#isShadowed(route, path)) methods.add(route.method);
    }
    if (methods.has("GET")) methods.add("HEAD");
    return [...methods].sort();
  }

  /** True when a literal route has the path but not the method, so that Elysia would run a route with a parameter. */
  isShadowed(method: string, path: string): boolean {
    return this.#literals.get(path)?.has(method) === false;
  }

  #isShadowed(route: Route, path: string): boolean {
    return this.#literals.has(path) && route.path !== path;
  }

  /** Made when a path is first looked up, which few requests need: a hundred of them take longer than a request. */
  #expressions(): readonly RouteExpression<Route>[] {
    this.#patterns ??= this.#routes.map((route) => {
      const names = [...route.path.matchAll(/:(\w+)/g)].map((match) => match[1] ?? "");
      const source = route.path.replaceAll(/[.\\+?^$()[\]{}|]/g, "\\$&").replaceAll(/:\w+/g, "([^/]+)");
      return { route, expression: new RegExp(`^${source.replace(/\*$/, ".*")}$`), names };
    });
    return this.#patterns;
  }

  #match(method: string, path: string): { route: Route; params: Record<string, string> } | null {
    for (const { route, expression, names } of this.#expressions()) {
      const match = route.method === method ? expression.exec(path) : null;
      if (match === null || this.#isShadowed(route, path)) continue;
      const params = Object.fromEntries(names.map((name, index) => [name, decodeSegment(match[index + 1] ?? "")]));
      return { route, params };
    }
    return null;
  }
}

/** Source of a hook that uses no part of the context but the request, and may answer it. */
const HARMLESS_SOURCE = "async ({ request }) => { return request }";

/**
 * An asynchronous hook whose source Elysia cannot read. It may pass on its context, which has the parts of every context.
 * If Elysia saw the source, it would copy the cookies and headers of every request, and make every response twice.
 */
export function unread<Context, Result>(
  hook: (context: Context) => Promise<Result>,
): (context: Context) => Promise<Result> {
  return Object.assign(hook, { toString: () => HARMLESS_SOURCE });
}

/** The error for a path that no route matches, or none with this method. */
export function unknownRoute(table: RouteTable<RoutePattern>, path: string): ApiError {
  const allow = table.allowed(path);
  if (allow.length === 0) return new ApiError("not_found", "no such route");
  return new ApiError("method_not_allowed", `this path allows only ${allow.join(", ")}`, { allow });
}

/** A segment that cannot be decoded stays as it is: validation refuses it, because it is not a UUID. */
function decodeSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch (error) {
    if (error instanceof URIError) return segment;
    throw error;
  }
}

/** The path of a request's URL as the client spelled it, without the query. */
export function pathOf(url: string): string {
  // Without a Host header, the URL is only the path.
  const start = url.startsWith("/") ? 0 : url.indexOf("/", url.indexOf("://") + 3);
  const query = url.indexOf("?", start);
  const fragment = url.indexOf("#", start);
  if (fragment === -1) return query === -1 ? url.slice(start) : url.slice(start, query);
  return url.slice(start, query === -1 ? fragment : Math.min(query, fragment));
}

/**
 * The path by which Elysia routes a URL. It differs from {@link pathOf} when the host has fewer than four characters, when
 * there is no Host header, and when the client sends a fragment.
 */
export function elysiaPathOf(url: string): string {
  const start = url.indexOf("/", ELYSIA_ORIGIN_CHARACTERS);
  const query = url.indexOf("?", start + 1);
  return url.substring(start, query === -1 ? undefined : query);
}
