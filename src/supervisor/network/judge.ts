import type { Destination, NamedHosts, NetworkRequest, NetworkRule } from "../../domain/network.ts";
import type { AddressReach } from "../../network/gate.ts";
import { allowsDestination, allowsName } from "../../network/rules.ts";

/** Port of which the first bytes must be TLS for the name that was opened, unless the request allows any bytes. */
const TLS_PORT = 443;

/** The hosts that the operator allows instances to reach. */
export interface OperatorRules {
  /** the ceiling of all requests */
  readonly allow: readonly NetworkRule[];
  /** hosts whose addresses need not be public */
  readonly private: NamedHosts;
}

/** Judges destinations and names by the rules of the operator and of one request, without any lookup. */
export class NetworkJudge {
  readonly #operator: OperatorRules;
  readonly #request: NetworkRequest;
  /** lists of rules, each of which must allow what is asked for */
  readonly #lists: readonly (readonly NetworkRule[])[];

  constructor(operator: OperatorRules, request: NetworkRequest) {
    this.#operator = operator;
    this.#request = request;
    this.#lists = request.record ? [operator.allow] : [operator.allow, request.allow];
  }

  allows(destination: Destination): boolean {
    return this.#lists.every((rules) => allowsDestination(rules, destination));
  }

  allowsName(name: string): boolean {
    return this.#lists.every((rules) => allowsName(rules, name));
  }

  /** True when the operator has named the host as one whose addresses need not be public. */
  isNamed({ kind, host }: Pick<Destination, "kind" | "host">): boolean {
    return kind === "name" && allowsName(this.#operator.private.names, host);
  }

  reach(destination: Destination): AddressReach {
    const { ranges } = this.#operator.private;
    return { forbidden: "all-not-public", except: ranges, anyAddress: this.isNamed(destination) };
  }

  /** The name that TLS must ask for; null when any bytes may be sent. */
  serverName({ kind, host, port }: Destination): string | null {
    return this.#request.tls === "sni" && kind === "name" && port === TLS_PORT ? host : null;
  }
}
