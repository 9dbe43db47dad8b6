/** A rule of a request. */
export interface Rule {
  readonly host: string;
  ports?: number[] | "*";
}

/** The rules of a typed text, one per line, or the problem of the first invalid line. */
export type Rules = { readonly rules: readonly Rule[] } | { readonly problem: string };

/**
 * Rules of lines such as `*.example.org`, `10.0.7.5:5432`, `[2001:db8::1]:443+8443` and `example.org:*`. The
 * appliance checks the hosts.
 */
export function rulesOf(text: string): Rules {
  const rules: Rule[] = [];
  for (const [index, line] of text.split("\n").entries()) {
    const rule = line.trim();
    if (rule === "" || rule.startsWith("#")) continue;
    const [, bracketed, plain, ports] = /^(?:\[([^\]\s]+)\]|([^\s[\]]*?))(?::(\*|[\d+,\s]+))?$/.exec(rule) ?? [];
    // An IPv6 address without brackets has colons of its own.
    const isAddress = (rule.match(/:/g)?.length ?? 0) > 1 && bracketed === undefined;
    const host = isAddress ? rule : (bracketed ?? plain);
    if (host === undefined || host === "")
      return { problem: `line ${index + 1} is not a rule: HOST, or HOST:PORT+PORT` };
    if (isAddress || ports === undefined) rules.push({ host });
    else if (ports === "*") rules.push({ host, ports });
    else {
      const numbers = ports.split(/[+,]/).map((port) => Number(port.trim() || Number.NaN));
      if (numbers.some((port) => !Number.isInteger(port) || port < 1 || port > 65_535)) {
        return { problem: `line ${index + 1}: a port is a number from 1 to 65535` };
      }
      rules.push({ host, ports: numbers });
    }
  }
  return { rules };
}

interface ShownRule {
  readonly host: string;
  readonly ports?: readonly number[] | "*" | undefined;
}

/** A rule as {@link rulesOf} reads it. */
export function ruleText({ host, ports }: ShownRule): string {
  if (ports === undefined) return host;
  const name = host.includes(":") ? `[${host}]` : host;
  return `${name}:${ports === "*" ? ports : ports.join("+")}`;
}

/** The part of a network that its rules do not name, as a sentence; null for none. */
export function restText(network: { readonly default?: string; readonly deny?: readonly string[] }): string | null {
  if (network.default !== "allow") return null;
  const { deny = [] } = network;
  return `Everything that the operator allows${deny.length === 0 ? "" : `, except ${deny.join(", ")}`}`;
}
