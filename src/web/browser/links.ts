/** The place in the page, with the choices made there. */
export interface Route {
  /** of the link, as it stands in the address */
  readonly path: string;
  /** the parts of `path` between its slashes, decoded */
  readonly segments: readonly string[];
  /** the query: a copy, so that it can be changed and given to {@link navigate} */
  readonly parameters: URLSearchParams;
}

/** @param path with its query */
export function routeOf(path: string): Route {
  const { pathname, searchParams } = new URL(`http://page.invalid${path}`);
  const segments = pathname.split("/").filter((part) => part !== "");
  return { path: pathname, segments: segments.map(decoded), parameters: searchParams };
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    // URIError: a lone per cent sign.
    return segment;
  }
}

/** A query in the form of a link: `?a=1&b=2`, or `?` alone, which is a link to no query. Empty values are left out. */
export function queryOf(values: Readonly<Record<string, string | number | boolean | null | undefined>>): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) query.set(name, String(value));
  }
  return `?${query}`;
}
