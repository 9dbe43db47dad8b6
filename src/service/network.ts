import { ApiError } from "../domain/errors.ts";
import { given } from "../domain/given.ts";
import {
  NETWORK_RULES_COUNT_MAX,
  type NetworkInput,
  type NetworkRequest,
  type NetworkRule,
  type NetworkWish,
} from "../domain/network.ts";
import { allows } from "../domain/scope.ts";
import { covers, parseRangeText, parseRule, ruleText } from "../network/rules.ts";
import type { NetworkLimits, Principal } from "./parts.ts";

/** Allows everything: only the rules of the operator at the time of the run limit the network. */
const EVERYTHING: readonly NetworkRule[] = ["*", "0.0.0.0/0", "::/0"].map((host) => ({ host, ports: "*" }));

/** The rules of the operator that a caller may use; none when its scopes do not permit a network. */
export function rulesFor({ grants }: Principal, limits: NetworkLimits): readonly NetworkRule[] {
  return allows(grants, "instances:network") ? limits.allow : [];
}

/** The largest network that the operator and the scopes of the caller permit; null when they permit none. */
export function ceilingOf(principal: Principal, limits: NetworkLimits): NetworkRequest | null {
  if (rulesFor(principal, limits).length === 0) return null;
  return { allow: EVERYTHING, tls: "sni", record: false };
}

/**
 * Checks the network of a request against the rules of the operator; null for no network.
 * @throws ApiError `validation_error` for a wrong rule, `forbidden` for a rule that the operator does not permit
 */
export function networkOf(input: NetworkInput | undefined, limits: NetworkLimits): NetworkRequest | null {
  if (input === undefined || input === "none") return null;
  const { allow = [], tls = "sni", record = false } = input;
  checkCount(input);
  const rules = allow.map(({ host, ports }, index) => parseRule(host, ports, fieldOf(index)));
  const deny = input.deny?.map((range, index) => parseRangeText(range, `network.deny.${index}`)) ?? [];
  if (limits.allow.length === 0) {
    throw new ApiError("forbidden", "network: the operator does not allow any (network.allow is empty)", {
      field: "network",
      ...first(rules),
    });
  }
  rules.forEach((rule, index) => {
    if (covers(limits.allow, rule)) return;
    const field = fieldOf(index);
    throw new ApiError("forbidden", `${field}: the operator does not allow ${ruleText(rule)}`, { field, rule });
  });
  if (record && !limits.record) {
    const field = "network.record";
    throw new ApiError("forbidden", `${field}: the operator does not allow recorded runs`, { field });
  }
  return { allow: rules, ...(input.default === "allow" ? { deny } : {}), tls, record };
}

function checkCount({ allow = [], deny = [], record = false, default: rest }: NetworkWish): void {
  const wrong = (field: string, rule: string): ApiError =>
    new ApiError("validation_error", `network.${field} ${rule}`, { field: `network.${field}` });
  const allRules = "in a recorded run, which may use all of the operator's rules";
  if (record && allow.length > 0) throw wrong("allow", `must have no rules ${allRules}`);
  if (record && rest === "allow") throw wrong("default", `must not be allow ${allRules}`);
  if (rest !== "allow" && deny.length > 0) {
    throw wrong(
      "deny",
      'needs network.default "allow": without it, nothing is permitted but the rules of network.allow',
    );
  }
  if (deny.length > NETWORK_RULES_COUNT_MAX) throw wrong("deny", `must have at most ${NETWORK_RULES_COUNT_MAX} ranges`);
  if (record || (allow.length > 0 && allow.length <= NETWORK_RULES_COUNT_MAX)) return;
  if (rest === "allow" && allow.length === 0) return;
  throw wrong("allow", `must have 1 to ${NETWORK_RULES_COUNT_MAX} rules`);
}

function fieldOf(index: number): string {
  return `network.allow.${index}`;
}

function first([rule]: readonly NetworkRule[]): { readonly rule?: NetworkRule } {
  return given({ rule });
}
