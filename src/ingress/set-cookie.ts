const DOMAIN_ATTRIBUTE = /^\s*domain\s*(?:=|$)/i;

/**
 * A guest's Set-Cookie as the client gets it: for the guest's own host alone, whatever its Domain is. Null when the guest must
 * not set that cookie.
 */
export function cookieForGuestHost(value: string, reserved: ReadonlySet<string>): string | null {
  const [pair = "", ...attributes] = value.split(";");
  // A cookie without a name, with or without the sign before its value, is sent as its value: that may look like another one.
  const name =
    pair
      .split("=")
      .map((part) => part.trim())
      .find((part) => part !== "") ?? "";
  if (reserved.has(name)) return null;
  return [pair, ...attributes.filter((attribute) => !DOMAIN_ATTRIBUTE.test(attribute))].join(";");
}
