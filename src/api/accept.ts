/** True when an Accept-Encoding header accepts gzip. */
export function acceptsGzip(header: string | null): boolean {
  const qualities = qualitiesOf(header);
  return (qualities.get("gzip") ?? qualities.get("x-gzip") ?? qualities.get("*") ?? 0) > 0;
}

/** The first of `stored`, the best encoding first, that an Accept-Encoding header accepts; null: none. */
export function preferredEncoding<Encoding extends string>(
  header: string | null,
  stored: readonly Encoding[],
): Encoding | null {
  const qualities = qualitiesOf(header);
  return stored.find((encoding) => (qualities.get(encoding) ?? qualities.get("*") ?? 0) > 0) ?? null;
}

/** True when an Accept header names JSON, and does not prefer an event stream. */
export function prefersJson(header: string | null): boolean {
  const qualities = qualitiesOf(header);
  const json = qualities.get("application/json") ?? 0;
  return json > 0 && json > (qualities.get("text/event-stream") ?? 0);
}

/** True when an Accept header names lines of JSON (NDJSON), and does not prefer JSON. */
export function prefersLines(header: string | null): boolean {
  const qualities = qualitiesOf(header);
  const lines = qualities.get("application/x-ndjson") ?? 0;
  return lines > 0 && lines >= (qualities.get("application/json") ?? 0);
}

/** The names in an Accept or Accept-Encoding header, in lower case, with their qualities, which are 1 by default. */
function qualitiesOf(header: string | null): ReadonlyMap<string, number> {
  const qualities = new Map<string, number>();
  for (const part of (header ?? "").toLowerCase().split(",")) {
    const [name = "", ...parameters] = part.split(";").map((text) => text.trim());
    const quality = parameters.find((parameter) => parameter.startsWith("q="));
    qualities.set(name, quality === undefined ? 1 : Number(quality.slice(2)) || 0);
  }
  return qualities;
}
