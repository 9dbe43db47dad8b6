import type { Fields, RequestHead } from "../../ingress/http/head.ts";
import { valuesOf } from "../../ingress/http/head.ts";

/** Name of a sandbox as the client spelled it: it may not exist. */
export interface NamedPort {
  readonly sandbox: string;
  readonly port: number;
}

/** Where a request goes: to a port of a sandbox, to the agent's part of the surface, or to the API. */
export type Place =
  | ({ readonly kind: "port" } & NamedPort)
  /** `sandbox` null: the request does not name one */
  | { readonly kind: "envd"; readonly sandbox: string | null }
  | { readonly kind: "api" };

/** The port by which clients name the agent. */
const ENVD_PORT = 49_983;
const PORT_MAX = 65_535;
/** Clients split the name of a host at its first dot, and that at its first dash. */
const hostExpression = /^(\d{1,5})-([a-z0-9]{16,32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/;
const rpcExpression = /^\/(?:process\.Process|filesystem\.Filesystem)\//;
const envdExpression = /^\/(?:files(?:\/compose)?|health|envs|metrics)$/;

/** Whether a path, without its query, belongs to the services that are called by Connect. */
export function isRpcPath(path: string): boolean {
  return rpcExpression.test(path);
}

/** Whether a path, without its query, belongs to the agent's part of the surface. */
export function isEnvdPath(path: string): boolean {
  return isRpcPath(path) || envdExpression.test(path);
}

/** Decides by Host, then by path, then by the fields that name a sandbox, which clients send with calls of the API, too. */
export function placeOf({ host, head }: { readonly host: string; readonly head: RequestHead }): Place {
  const byHost = portOfHost(host);
  if (byHost !== null) return byHost.port === ENVD_PORT ? { kind: "envd", sandbox: byHost.sandbox } : byHost;
  const byFields = portOfFields(head.fields);
  if (byFields?.port !== ENVD_PORT && byFields !== null && valuesOf(head.fields, "x-api-key").length === 0) {
    return { kind: "port", ...byFields };
  }
  if (!isEnvdPath(head.target.split("?", 1)[0] ?? "") || (byFields !== null && byFields.port !== ENVD_PORT))
    return { kind: "api" };
  return { kind: "envd", sandbox: byFields?.sandbox ?? null };
}

function portOfHost(host: string): ({ readonly kind: "port" } & NamedPort) | null {
  const label = host.split(/[.:]/, 1)[0] ?? "";
  const [, digits, sandbox = ""] = hostExpression.exec(label) ?? [];
  return digits === undefined ? null : { kind: "port", sandbox, port: Number(digits) };
}

/** Null: no sandbox is named. */
function portOfFields(fields: Fields): NamedPort | null {
  const [sandbox] = valuesOf(fields, "e2b-sandbox-id");
  if (sandbox === undefined || sandbox === "") return null;
  const [digits = String(ENVD_PORT)] = valuesOf(fields, "e2b-sandbox-port");
  return { sandbox, port: /^\d{1,5}$/.test(digits) ? Number(digits) : 0 };
}

/** Whether a number can be that of a port. */
export function isPort(port: number): boolean {
  return port >= 1 && port <= PORT_MAX;
}
