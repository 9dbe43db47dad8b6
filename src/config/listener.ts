/** Settings of a listener that every such table has. */
export interface ListenerConfig {
  readonly host: string;
  readonly port: number;
  readonly tls: { readonly cert: string; readonly key: string } | null;
  /** whether a reverse proxy with TLS is in front */
  readonly isBehindProxy: boolean;
}

/** Names of the tables of settings that describe a listener. */
type Table = "ingress" | "e2b";

/** The settings of a table by their names. */
export type ListenerValues<Name extends Table> = {
  readonly [Key in `${Name}.listen` | `${Name}.tls_cert` | `${Name}.tls_key`]: string | null;
} & { readonly [Key in `${Name}.behind_proxy`]: boolean };

const listenExpression = /^(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([1-9][0-9]{0,4})$/;
const loopbackExpression = /^(127\.|localhost$|::1$|\[::1\]$)/;
const PORT_MAX = 65_535;

/** Whether only this machine reaches an address. */
export function isLoopback(host: string): boolean {
  return loopbackExpression.test(host);
}

/** An address and a port, such as `127.0.0.1:8644`; undefined when the text is not that. */
export function readListen(raw: unknown): string | undefined {
  return typeof raw === "string" && parseListen(raw) !== null ? raw : undefined;
}

function parseListen(text: string): { readonly host: string; readonly port: number } | null {
  const [, bracketed, plain = "", digits] = listenExpression.exec(text) ?? [];
  const port = Number(digits);
  return digits === undefined || port > PORT_MAX ? null : { host: bracketed ?? plain, port };
}

/** The listener of a table of settings; null: there is none. */
export function listenerConfig<Name extends Table>(name: Name, values: ListenerValues<Name>): ListenerConfig | null {
  const v = values as Readonly<Record<string, string | boolean | null>>;
  const text = (key: string) => v[`${name}.${key}`] as string | null;
  const place = parseListen(text("listen") ?? "");
  if (place === null) return null;
  const [cert, key] = [text("tls_cert"), text("tls_key")];
  const tls = cert === null || key === null ? null : { cert, key };
  return { ...place, tls, isBehindProxy: v[`${name}.behind_proxy`] === true };
}

/** Mistakes of a listener's settings that are right by themselves. */
export function listenerProblems<Name extends Table>(
  name: Name,
  values: ListenerValues<Name> & { readonly "listen.insecure": boolean },
): string[] {
  const v = values as Readonly<Record<string, string | boolean | null>>;
  const problems: string[] = [];
  const [listen, cert, key] = [`${name}.listen`, `${name}.tls_cert`, `${name}.tls_key`];
  if ((v[cert] === null) !== (v[key] === null)) problems.push(`${cert} and ${key} belong together`);
  const config = listenerConfig(name, values);
  if (config !== null && !isLoopback(config.host) && config.tls === null && v["listen.insecure"] !== true) {
    problems.push(
      `${listen} ${v[listen]} is reachable from other machines: set ${cert} and ${key}, or listen.insecure = true`,
    );
  }
  return problems;
}
