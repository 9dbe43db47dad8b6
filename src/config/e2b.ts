import { type ListenerConfig, type ListenerValues, listenerConfig, listenerProblems } from "./listener.ts";

/** Settings of the listener for clients of E2B. */
export interface E2bConfig extends ListenerConfig {
  /** the domain below which each port has a name, with a port if need be; null: clients know one by themselves */
  readonly domain: string | null;
  /** the user of a process or file whose request names none */
  readonly defaultUser: string;
  /** whether a port needs no token unless its sandbox asks for one */
  readonly hasPublicPorts: boolean;
}

/** The settings by their names. */
interface E2bValues extends ListenerValues<"e2b"> {
  readonly "e2b.domain": string | null;
  readonly "e2b.default_user": string;
  readonly "e2b.public_ports": boolean;
  readonly "listen.insecure": boolean;
  readonly public_url: string | null;
}

/** Null: there is no such listener. */
export function e2bConfig(v: E2bValues): E2bConfig | null {
  const listener = listenerConfig("e2b", v);
  if (listener === null) return null;
  return {
    ...listener,
    domain: v["e2b.domain"],
    defaultUser: v["e2b.default_user"],
    hasPublicPorts: v["e2b.public_ports"],
  };
}

/** Mistakes of settings that are right by themselves. */
export function e2bProblems(v: E2bValues): string[] {
  const problems = listenerProblems("e2b", v);
  const domain = v["e2b.domain"]?.replace(/:.*/, "");
  const own = v.public_url === null ? null : new URL(v.public_url).hostname;
  if (v["e2b.listen"] !== null && domain !== undefined && own !== null && `.${own}`.endsWith(`.${domain}`)) {
    problems.push(`e2b.domain ${domain} must not contain the host of public_url: guests could set its cookies`);
  }
  return problems;
}
