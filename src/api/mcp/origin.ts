const LOOPBACK_NAMES: readonly string[] = ["localhost", "127.0.0.1", "[::1]"];

/**
 * True for an origin of this machine or of the service itself. A page of any other origin may have reached the service by
 * its own name, pointed to this machine (DNS rebinding), so the request's Host does not count.
 */
export function isOwnOrigin(origin: string, publicUrl: string | null): boolean {
  if (!URL.canParse(origin)) return false;
  const { protocol, hostname, origin: canonical } = new URL(origin);
  if (protocol !== "http:" && protocol !== "https:") return false;
  return LOOPBACK_NAMES.includes(hostname) || (publicUrl !== null && new URL(publicUrl).origin === canonical);
}
