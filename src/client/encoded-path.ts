/** The bytes of a path for a query, each percent-encoded. */
export function encodedPath(path: string | Uint8Array): string {
  const bytes = typeof path === "string" ? new TextEncoder().encode(path) : path;
  return Array.from(bytes, (byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
}
