import { isIP } from "node:net";

/** Suffixes of names that cannot be registered: the local network resolves them (RFC 6761, 6762, 8375). */
const LOCAL_SUFFIXES: readonly string[] = [".localhost", ".local", ".home.arpa", ".internal"];

/**
 * True for the origin of a page of this service: that of `public_url`, or that of the request's Host. The owner of a public
 * name can point it to this machine after a browser has loaded a page from there (DNS rebinding): that page and this service
 * then have the same origin. So a Host counts only where this is impossible: by TLS, which needs a certificate for the name,
 * for addresses, and for names that cannot be registered.
 * @param host the request's Host header
 */
export function isOwnOrigin(origin: string, host: string | null, publicUrl: string | null): boolean {
  if (!URL.canParse(origin)) return false;
  const { protocol, hostname, origin: canonical } = new URL(origin);
  if (protocol !== "http:" && protocol !== "https:") return false;
  if (publicUrl !== null && new URL(publicUrl).origin === canonical) return true;
  const addressed = `${protocol}//${host ?? ""}`;
  if (!URL.canParse(addressed) || new URL(addressed).origin !== canonical) return false;
  return protocol === "https:" || isLocalName(hostname);
}

function isLocalName(hostname: string): boolean {
  const name = hostname.replace(/\.$/, "");
  if (name.startsWith("[") || isIP(name) !== 0 || !name.includes(".")) return true;
  return LOCAL_SUFFIXES.some((suffix) => name.endsWith(suffix));
}
