import { isIP } from "node:net";

/** Ends of names that nobody can register, so that they lead where the network at hand says (RFC 6761, 6762, 8375). */
const LOCAL_SUFFIXES: readonly string[] = [".localhost", ".local", ".home.arpa", ".internal"];

/**
 * True for the origin of a page that came from this service: that of `public_url`, or that of the request's Host. The owner
 * of a public name can let it lead to this machine after a browser has loaded a page of theirs (DNS rebinding), so that their
 * page and this service have one origin. A Host counts only where that cannot be: by TLS, which needs a certificate for the
 * name, for addresses, and for names that nobody owns.
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
