import { readFileSync, statSync } from "node:fs";
import type { NamedHosts, NetworkRule, ProxyAddress, ProxyCredentials } from "../domain/network.ts";
import {
  canonicalAddress,
  isAddressRule,
  isHostName,
  parseHostText,
  parseRuleText,
  ruleText,
} from "../network/rules.ts";

const PORT_MAX = 65_535;
/** Limit of SOCKS. */
const CREDENTIAL_BYTES_MAX = 255;
const proxyExpression = /^(http|socks5):\/\/(?:\[([^[\]]+)\]|([A-Za-z0-9._-]+)):(\d{1,5})$/;

/** Checks rules such as `*.example.org:80,443`, and spells them in full. @throws Error whose message completes "KEY …" */
export function readRules(texts: readonly string[]): string[] {
  return texts.map((text) => ruleText(read(text, parseRuleText)));
}

/** The rules in the texts of `readRules`. */
export function namedRules(texts: readonly string[]): NetworkRule[] {
  return texts.map(parseRuleText);
}

/** Checks names and ranges of addresses, and brings them into their canonical spelling. @throws as `readRules` does */
export function readHosts(texts: readonly string[]): string[] {
  return texts.map((text) => read(text, parseHostText).host);
}

/** Reads addresses of name servers, and returns each with its port. @throws as `readRules` does */
export function readServers(texts: readonly string[]): string[] {
  return texts.map((text) => {
    const [, bracketed, plain = "", port = "53"] = /^(?:\[([^[\]]+)\]|([0-9.]+))(?::(\d{1,5}))?$/.exec(text) ?? [];
    const address = canonicalAddress(bracketed ?? plain);
    if (address === null || Number(port) < 1 || Number(port) > PORT_MAX) {
      throw new Error(`has a mistake in ${JSON.stringify(text)}: 192.0.2.1 and [2001:db8::1]:53 are examples`);
    }
    return `${address.includes(":") ? `[${address}]` : address}:${Number(port)}`;
  });
}

/** The address of a proxy in its canonical spelling; undefined when the text is not one. */
export function readProxy(raw: unknown): string | undefined {
  const { kind, host, port } = parseProxy(String(raw)) ?? {};
  return host === undefined ? undefined : `${kind}://${host.includes(":") ? `[${host}]` : host}:${port}`;
}

/** The parts of the address of a proxy; null when the text is not one. */
export function parseProxy(text: string): ProxyAddress | null {
  const [, kind, bracketed, plain = "", digits] = proxyExpression.exec(text) ?? [];
  const port = Number(digits);
  const name = plain.toLowerCase();
  const host = canonicalAddress(bracketed ?? plain) ?? (isHostName(name) ? name : null);
  if (host === null || port < 1 || port > PORT_MAX) return null;
  return { kind: kind === "http" ? kind : "socks5", host, port };
}

/** The proxy with its credentials; null: none. @throws Error when their file cannot be used */
export function proxyOf<Proxy extends object>({
  proxy,
  proxyCredentialsFile: file,
}: {
  readonly proxy: Proxy | null;
  readonly proxyCredentialsFile: string | null;
}) {
  return proxy === null ? null : { ...proxy, credentials: file === null ? null : readProxyCredentials(file) };
}

/**
 * Reads the file of `network.proxy_credentials_file`.
 * @throws Error that names the mistake, without any of the content
 */
export function readProxyCredentials(path: string): ProxyCredentials {
  let text: string;
  try {
    // Every user who can read the file has the password.
    if ((statSync(path).mode & 0o077) !== 0) throw new Error("must be readable by its owner only (chmod 0600)");
    text = readFileSync(path, "utf8");
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new Error(
      `network.proxy_credentials_file: ${path} ${code === undefined ? message : `cannot be read: ${code}`}`,
    );
  }
  const [, user = "", password = ""] = /^([^:\p{Cc}]+):(\P{Cc}+)\r?\n?$/u.exec(text) ?? [];
  const lengths = [user, password].map((part) => Buffer.byteLength(part));
  if (lengths.some((bytes) => bytes < 1 || bytes > CREDENTIAL_BYTES_MAX)) {
    const form = `USER:PASSWORD, each of at most ${CREDENTIAL_BYTES_MAX} bytes`;
    throw new Error(`network.proxy_credentials_file: ${path} must have one line, ${form}`);
  }
  return { user, password };
}

/** Divides the texts of `readHosts` into names and ranges. */
export function namedHosts(hosts: readonly string[]): NamedHosts {
  const rules = hosts.map((host): NetworkRule => ({ host, ports: "*" }));
  return {
    names: rules.filter((rule) => !isAddressRule(rule)),
    ranges: rules.filter(isAddressRule).map(({ host }) => host),
  };
}

function read(text: string, parse: (text: string) => NetworkRule): NetworkRule {
  try {
    return parse(text);
  } catch (error) {
    throw new Error(`has a mistake in ${(error as Error).message}`, { cause: error });
  }
}
