/** Parts of the vendor's API that this server does not have, by the first part of their paths. */
const NOT_OFFERED: Readonly<Record<string, string>> = {
  volumes: "volumes",
  secrets: "secrets",
  teams: "teams",
  nodes: "nodes",
  admin: "administrative requests",
  "api-keys": "API keys",
  "access-tokens": "access tokens",
};

/** Says what a path is about that is not offered, so that a person need not look for a mistake in the address; null: nothing. */
export function refusalOf(path: string): string | null {
  const [, first = ""] = path.split("/");
  const what = Object.hasOwn(NOT_OFFERED, first) ? NOT_OFFERED[first] : undefined;
  return what === undefined ? null : `${what} are not offered by this server`;
}
