/*
 * What Elysia cannot do, and what is done for it:
 * - HEAD of a path with parameters: it runs GET, even where the path has a route for HEAD, and tells the length of the
 *   body that it has read. `RouteTable` finds the route instead, which Elysia then runs like any other.
 * - URLs that it takes the path from the wrong place of: `elysiaPathOf` tells, and `RouteTable` finds the route.
 * - 405 with Allow: it answers 404 for a method that the path does not know. `unknownRoute` says which ones it does.
 * - A path that is a route of its own and looks like one with a parameter, asked with a method that only the latter
 *   knows: `isShadowed`.
 * - Paths as bytes: it decodes queries as UTF-8. `query.ts` reads them in its place.
 * - Nothing read before the caller is known: it reads a body before any hook but `onRequest` and `parse`, where
 *   `app.ts` and `access.ts` hold the caller.
 */
import { ApiError } from "../domain/errors.ts";

/** Elysia takes no origin to be shorter than this and looks for the path behind it, in `characters`. */
const ELYSIA_ORIGIN_CHARACTERS = 11;

/** What is needed of a route to find it. */
interface Findable {
  readonly method: string;
  readonly path: string;
}

/** Finds routes by path: for HEAD, for misread URLs, and to say which methods a path knows. */
export class RouteTable<Route extends Findable> {
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
      if (expression.test(path) && !this.#isShadowed(route, path)) methods.add(route.method);
    }
    if (methods.has("GET")) methods.add("HEAD");
    return [...methods].sort();
  }

  /** True when the path is a route of its own, which does not know the method, and looks like one with a parameter. */
  isShadowed(method: string, path: string): boolean {
    return this.#literals.has(path) && this.#match(method, path) === null;
  }

  #isShadowed(route: Route, path: string): boolean {
    return this.#literals.has(path) && route.path !== path;
  }

  #match(method: string, path: string): { route: Route; params: Record<string, string> } | null {
    for (const { route, expression, names } of this.#entries) {
      const match = route.method === method ? expression.exec(path) : null;
      if (match === null || this.#isShadowed(route, path)) continue;
      const params = Object.fromEntries(names.map((name, index) => [name, decodeSegment(match[index + 1] ?? "")]));
      return { route, params };
    }
    return null;
  }
}

/** The error for a path that no route answers, or none with this method. */
export function unknownRoute(table: RouteTable<Findable>, path: string): ApiError {
  const allow = table.allowed(path);
  if (allow.length === 0) return new ApiError("not_found", "no such route");
  return new ApiError("method_not_allowed", `this route knows only ${allow.join(", ")}`, { allow });
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
