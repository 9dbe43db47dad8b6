import { given } from "../../domain/given.ts";
import type { Destination, NamedHosts, NetworkRequest, NetworkRule } from "../../domain/network.ts";
import { leadsToAny } from "../../network/addresses.ts";
import { isDenied } from "../../network/gate/judge.ts";
import type { AddressReach, DeniedRanges } from "../../network/gate.ts";
import { allowsDestination, allowsName, isAddressRule } from "../../network/rules.ts";

/** Port of which the first bytes must be TLS for the name that was opened, unless the request allows any bytes. */
const TLS_PORT = 443;

/** The hosts that the operator allows instances to reach. */
export interface OperatorRules {
  /** the ceiling of all requests */
  readonly allow: readonly NetworkRule[];
  /** hosts whose addresses need not be public */
  readonly private: NamedHosts;
}

/** The ranges of all addresses. A request that denies both denies every name that no rule permits. */
const ALL_RANGES = ["0.0.0.0/0", "::/0"] as const;

/** A connection that is being opened or is open. */
export interface JudgedConnection {
  readonly destination: Destination;
  /** the name that its TLS must ask for; null: any bytes may be sent */
  readonly serverName: string | null;
  /** absent until it is open; null when only the site's proxy knows it */
  address?: string | null;
}

/** Judges destinations and names by the rules of the operator and of one request, without any lookup. */
export class NetworkJudge {
  readonly #operator: OperatorRules;
  readonly #request: NetworkRequest;
  /** the addresses and ranges that the request denies where its rules permit nothing; null: all the rest */
  readonly #denied: readonly string[] | null;
  readonly #deniesNames: boolean;

  constructor(operator: OperatorRules, request: NetworkRequest) {
    this.#operator = operator;
    this.#request = request;
    const denied = request.record ? [] : (request.deny ?? null);
    this.#denied = denied;
    this.#deniesNames = denied === null || ALL_RANGES.every((range) => denied.includes(range));
  }

  allows(destination: Destination): boolean {
    if (!allowsDestination(this.#operator.allow, destination)) return false;
    if (allowsDestination(this.#request.allow, destination)) return true;
    if (destination.kind === "name") return !this.#deniesNames;
    return this.#denied !== null && !leadsToAny(destination.host, this.#denied);
  }

  allowsName(name: string): boolean {
    return allowsName(this.#operator.allow, name) && (!this.#deniesNames || allowsName(this.#request.allow, name));
  }

  /** Whether a connection that began under an earlier policy may stay. */
  keeps({ destination, serverName, address }: JudgedConnection): boolean {
    if (!this.allows(destination)) return false;
    if (serverName === null && this.serverName(destination) !== null) return false;
    const denied = this.#deniedTo(destination);
    return denied === undefined || address === undefined || (address !== null && !isDenied(address, denied));
  }

  /** True when the operator has named the host as one whose addresses need not be public. */
  isNamed({ kind, host }: Pick<Destination, "kind" | "host">): boolean {
    return kind === "name" && allowsName(this.#operator.private.names, host);
  }

  reach(destination: Destination): AddressReach {
    const { ranges } = this.#operator.private;
    const reach = { forbidden: "all-not-public", except: ranges, anyAddress: this.isNamed(destination) } as const;
    return { ...reach, ...given({ denied: this.#deniedTo(destination) }) };
  }

  /** The addresses of a name that the request denies; undefined when a rule permits the destination, or it has no name. */
  #deniedTo(destination: Destination): DeniedRanges | undefined {
    const { kind, port } = destination;
    const ranges = this.#denied ?? [];
    const { allow } = this.#request;
    if (kind === "address" || ranges.length === 0 || allowsDestination(allow, destination)) return undefined;
    const permitted = allow.filter((rule) => isAddressRule(rule) && (rule.ports === "*" || rule.ports.includes(port)));
    return { ranges, except: permitted.map(({ host }) => host) };
  }

  /** The name that TLS must ask for; null when any bytes may be sent. */
  serverName({ kind, host, port }: Destination): string | null {
    return this.#request.tls === "sni" && kind === "name" && port === TLS_PORT ? host : null;
  }
}
