import { readFileSync } from "node:fs";
import type { SpawnRequest } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { NETWORK_TLS } from "../../domain/network.ts";
import { parseRuleText } from "../../network/rules.ts";
import { CliError, type OptionValues, UsageError } from "../command.ts";

type Network = Exclude<NonNullable<SpawnRequest["network"]>, "none">;
type Rules = NonNullable<Network["allow"]>;

const ALLOW = "allow=";

/** Options of every command that starts an instance which may have a network. */
export const NETWORK_OPTIONS = {
  network: {
    type: "string",
    multiple: true,
    value: "POLICY",
    doc: "what the sandbox may connect to: none (default), record, allow=RULE[,RULE] or @FILE; a RULE is HOST[:80+443]; HOST can be *.NAME or a range",
  },
  "network-tls": {
    type: "string",
    value: "sni|any",
    choices: NETWORK_TLS,
    doc: "traffic to port 443 of a name: only TLS with that name in its SNI (sni, the default), or anything (any)",
  },
} as const;

/** The field of the request for the network; nothing for none. @throws UsageError; CliError for a file */
export function networkField(options: OptionValues<typeof NETWORK_OPTIONS>): Pick<SpawnRequest, "network"> {
  const { network: values = [], "network-tls": tls } = options;
  if (tls !== undefined && tls !== "sni" && tls !== "any") throw new UsageError("--network-tls must be sni or any");
  const alone = values.find((value) => value === "none" || value === "record");
  if (alone !== undefined && values.length > 1) throw new UsageError(`--network ${alone} excludes any other`);
  if (values.length === 0 || alone === "none") {
    if (tls !== undefined) throw new UsageError("--network-tls is for a sandbox with a network");
    return {};
  }
  const parts = alone === "record" ? [{ record: true }] : values.map(partOf);
  const allow = parts.flatMap((part: Network) => part.allow ?? []);
  const network = Object.assign({}, ...parts, allow.length === 0 ? {} : { allow }, given({ tls }));
  return { network };
}

function partOf(value: string): Network {
  if (value.startsWith("@")) return fileOf(value.slice(1));
  if (!value.startsWith(ALLOW)) {
    throw new UsageError(`--network ${value} must be none, record, allow=RULE[,RULE] or @FILE`);
  }
  return { allow: value.slice(ALLOW.length).split(",").map(ruleOf) };
}

function ruleOf(text: string): Rules[number] {
  try {
    const { host, ports } = parseRuleText(text);
    return { host, ports: ports === "*" ? ports : [...ports] };
  } catch (error) {
    throw new UsageError(`--network allow=: ${(error as Error).message}`);
  }
}

/** The policy of a file: an array of rules, or an object with `allow` or `default`. The appliance checks the rules. @throws CliError */
function fileOf(path: string): Network {
  let policy: unknown;
  try {
    policy = JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new CliError(code === undefined ? `${path} is not JSON: ${message}` : `cannot read ${path}: ${code}`);
  }
  if (Array.isArray(policy)) return { allow: policy as Rules };
  if (typeof policy === "object" && policy !== null) {
    if ("allow" in policy ? Array.isArray(policy.allow) : "default" in policy) return policy as Network;
  }
  throw new CliError(`${path} must have an array of rules, or an object with allow or default`);
}
