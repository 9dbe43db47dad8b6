import { type AccountId, parseUuid, type SandboxId } from "./ids.ts";
import { isSandboxName } from "./sandbox.ts";

/** How clients reach ports of sandboxes from outside. */
export interface IngressAddress {
  readonly scheme: "http" | "https";
  /** the domain below which each port has a name */
  readonly domain: string;
  /** the port of the listener, or of the reverse proxy in front; null: the one of the scheme */
  readonly port: number | null;
}

/** A sandbox in a host name: its id, or its account and name. */
export type NamedSandbox = { readonly id: SandboxId } | { readonly accountId: AccountId; readonly name: string };

/** A port of a sandbox, as a host name has it. */
export interface SandboxPort {
  readonly port: number;
  readonly sandbox: NamedSandbox;
}

export const PORT_MAX = 65_535;
/** The longest name of a host, in `characters`. */
const HOST_LENGTH_MAX = 253;
const labelExpression = /^([1-9][0-9]{0,4})-([a-z0-9-]+)$/;
const shortUuidExpression = /^([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$/;

/**
 * The port that a host names: `PORT-UUID.DOMAIN`, where the dashes of the UUID may be absent, or `PORT-NAME.ACCOUNT.DOMAIN`.
 * Null for any other host.
 * @param host the value of a Host field in lower case
 */
export function parsePortHost(host: string, domain: string): SandboxPort | null {
  const name = host.replace(/:[0-9]{1,5}$/, "");
  if (name.length > HOST_LENGTH_MAX || !name.endsWith(`.${domain}`)) return null;
  const [label = "", ...labels] = name.slice(0, -domain.length - 1).split(".");
  const [, digits, rest = ""] = labelExpression.exec(label) ?? [];
  const port = Number(digits);
  if (digits === undefined || port > PORT_MAX) return null;
  if (labels.length > 0) {
    return isSandboxName(rest) ? { port, sandbox: { accountId: labels.join(".") as AccountId, name: rest } } : null;
  }
  const id = parseUuid<SandboxId>(rest.replace(shortUuidExpression, "$1-$2-$3-$4-$5"));
  return id === null ? null : { port, sandbox: { id } };
}

/** The address of a port of a sandbox, with `/` at its end. */
export function portUrl(
  { scheme, domain, port: ownPort }: IngressAddress,
  id: SandboxId,
  port: number | string,
): string {
  return `${scheme}://${port}-${id}.${domain}${ownPort === null ? "" : `:${ownPort}`}/`;
}
