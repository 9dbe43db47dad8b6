import { given } from "../../domain/given.ts";
import { isoTime } from "../../domain/ids.ts";
import { type NetworkPeriod, type NetworkPolicy, type NetworkRequest, networkInputOf } from "../../domain/network.ts";
import { beginning } from "../../domain/text/beginning.ts";

/** Largest number of changes of the network of an instance: each is an event of its log. */
export const CHANGES_COUNT_MAX = 1000;
/** Largest number of policies that an audit has. */
export const POLICIES_COUNT_MAX = 32;
/** Largest size of the rules of each and of its denied ranges, as `characters` of JSON. */
const RULES_CHARACTERS_MAX = 4096;

/** A change of the policy of an instance. */
export interface PolicyChange {
  readonly from: NetworkPolicy;
  readonly to: NetworkPolicy;
  readonly resetCount: number;
}

/** The policies of an instance as plain data. */
export interface PoliciesRecord {
  readonly periods: readonly NetworkPeriod[];
  readonly changesCount: number;
}

/** The policies of an instance, in the order of time: the first, and the latest of the others. */
export class PolicyHistory {
  readonly #periods: NetworkPeriod[];
  #changesCount: number;

  private constructor({ periods, changesCount }: PoliciesRecord) {
    this.#periods = [...periods];
    this.#changesCount = changesCount;
  }

  /** @param at time since the epoch, in `milliseconds` */
  static begin(policy: NetworkRequest | null, at: number): PolicyHistory {
    const first = { since: isoTime(at), ...policyOf(policy), connections_reset: 0 };
    return new PolicyHistory({ periods: [first], changesCount: 0 });
  }

  static resume(record: PoliciesRecord): PolicyHistory {
    return new PolicyHistory(record);
  }

  record(): PoliciesRecord {
    return { periods: [...this.#periods], changesCount: this.#changesCount };
  }

  /** True when the instance had another policy before. */
  get hasChanged(): boolean {
    return this.#changesCount > 0;
  }

  /** True when no other policy may follow. */
  get isFull(): boolean {
    return this.#changesCount >= CHANGES_COUNT_MAX;
  }

  get isTruncated(): boolean {
    return this.#changesCount >= POLICIES_COUNT_MAX;
  }

  get periods(): readonly NetworkPeriod[] {
    return this.#periods;
  }

  add(policy: NetworkRequest | null, at: number, resetCount: number): PolicyChange {
    const { network, rules_truncated } = this.#periods.at(-1) as NetworkPeriod;
    const to = policyOf(policy);
    if (this.#periods.length >= POLICIES_COUNT_MAX) this.#periods.splice(1, 1);
    this.#periods.push({ since: isoTime(at), ...to, connections_reset: resetCount });
    this.#changesCount += 1;
    return { from: { network, ...(rules_truncated ? { rules_truncated } : {}) }, to, resetCount };
  }
}

function policyOf(policy: NetworkRequest | null): NetworkPolicy {
  if (policy === null) return { network: "none" };
  const allow = beginning(policy.allow, RULES_CHARACTERS_MAX);
  const deny = policy.deny && beginning(policy.deny, RULES_CHARACTERS_MAX);
  const isCut = allow.length < policy.allow.length || (deny?.length ?? 0) < (policy.deny?.length ?? 0);
  return {
    network: networkInputOf({ ...policy, allow, ...given({ deny }) }),
    ...(isCut ? { rules_truncated: true } : {}),
  };
}
