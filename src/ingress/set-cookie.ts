const DOMAIN_ATTRIBUTE = /^\s*domain\s*(?:=|$)/i;

/**
 * A guest's Set-Cookie as the client gets it: for the guest's own host alone, whatever its Domain is. Null when the guest must
 * not set that cookie.
 */
export function cookieForGuestHost(value: string, reserved: ReadonlySet<string>): string | null {
  const [pair = "", ...attributes] = value.split(";");
  // A cookie without a name is sent as its value, which may look like another cookie.
  const [name = ""] = pair.split("=");
  if (reserved.has(name.trim())) return null;
  return [pair, ...attributes.filter((attribute) => !DOMAIN_ATTRIBUTE.test(attribute))].join(";");
}
