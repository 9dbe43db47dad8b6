const PORT_MAX = 65_535;

/** The port of a typed text; null: it is none. */
export function portOf(text: string): number | null {
  const port = /^\d{1,5}$/.test(text.trim()) ? Number(text) : 0;
  return port >= 1 && port <= PORT_MAX ? port : null;
}

/** An address for a link; null for one that is not of the web, which a click must not open. */
export function addressOfPort(url: string): string | null {
  const address = URL.parse(url);
  return address !== null && /^https?:$/.test(address.protocol) ? address.href : null;
}
