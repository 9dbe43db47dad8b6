import { ApiError } from "../../domain/errors.ts";
import {
  NETWORK_RULES_COUNT_MAX,
  type NetworkInput,
  type NetworkPorts,
  type NetworkRule,
} from "../../domain/network.ts";
import { parseRangeText, parseRule, portsWithin } from "../../network/rules.ts";

/** The network of a request, with the names of the wire. Absent and null mean the same. */
export interface WireNetwork {
  readonly allowOut?: readonly string[] | null | undefined;
  readonly denyOut?: readonly string[] | null | undefined;
  readonly allow_internet_access?: boolean | null | undefined;
  readonly rules?: Readonly<Record<string, readonly { readonly transform?: unknown }[]>> | null | undefined;
  readonly egressProxy?: unknown;
}

/** The range by which clients mean all traffic, also that to names and to IPv6 addresses. */
const ALL_TRAFFIC = "0.0.0.0/0";

/**
 * The network of the core for one of this dialect, which permits what it does not deny, and in which an allowed destination
 * wins over a denied one.
 * @param ceiling the rules of the operator that the caller may use. When there are none, a request that names no destination
 *   has no network.
 * @throws ApiError `validation_error` for a malformed entry, an allowed one that the ceiling does not permit, and what is not
 *   offered; its details name the field
 */
export function networkOf(wire: WireNetwork, ceiling: readonly NetworkRule[]): NetworkInput | "ceiling" {
  refuseTransforms(wire);
  const allowOut = entriesOf(wire, "allowOut");
  const denyOut = entriesOf(wire, "denyOut").map((range, index) => parseRangeText(range, `network.denyOut.${index}`));
  const allow = allowOut.map((entry, index) => ruleOf(entry, ceiling, `network.allowOut.${index}`));
  const deny = wire.allow_internet_access === false ? [...denyOut, ALL_TRAFFIC] : denyOut;
  if (deny.length === 0 || allowOut.includes(ALL_TRAFFIC)) return "ceiling";
  if (deny.includes(ALL_TRAFFIC)) return allow.length === 0 ? "none" : { allow };
  return ceiling.length === 0 ? "none" : { default: "allow", allow, deny };
}

/** A rule for the ports that the operator permits: entries have none. */
function ruleOf(entry: string, ceiling: readonly NetworkRule[], field: string): { host: string; ports: NetworkPorts } {
  const { host } = parseEntry(entry, field);
  // All traffic is as much as the operator permits, if that is anything.
  const ports = host === ALL_TRAFFIC && ceiling.length > 0 ? "*" : portsWithin(ceiling, host);
  if (ports !== null) return { host, ports };
  throw new ApiError("validation_error", `${field}: the operator does not allow ${host}`, { field });
}

function parseEntry(entry: string, field: string): NetworkRule {
  try {
    return parseRule(entry, "*", field);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const message = error.message.replace(`${field}.host`, field);
    throw new ApiError("validation_error", message, { field });
  }
}

function entriesOf(wire: WireNetwork, name: "allowOut" | "denyOut"): readonly string[] {
  const entries = wire[name] ?? [];
  if (entries.length <= NETWORK_RULES_COUNT_MAX) return entries;
  const field = `network.${name}`;
  throw new ApiError("validation_error", `${field} must have at most ${NETWORK_RULES_COUNT_MAX} entries`, { field });
}

/** Connections would be made without what they are to be given on their way. */
function refuseTransforms({ rules, egressProxy }: WireNetwork): void {
  const notOffered = (field: string): ApiError =>
    new ApiError("validation_error", `${field} is not offered by this server`, { field });
  if (egressProxy !== undefined && egressProxy !== null) throw notOffered("network.egressProxy");
  const all = Object.values(rules ?? {}).flat();
  if (all.some(({ transform }) => transform !== undefined && transform !== null)) {
    throw notOffered("network.rules.transform");
  }
}
