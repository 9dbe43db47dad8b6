/** An id as this surface writes it: a UUID without dashes, because clients split the names of hosts at the first dash. */
export function wireId(id: string): string {
  return id.replaceAll("-", "");
}
