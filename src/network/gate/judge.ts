import { type AddressKind, addressKind, isInRange, leadsToAny } from "../addresses.ts";
import type { AddressReach, DeniedRanges } from "../gate.ts";

/** The rules by which addresses are judged. */
export interface Judgement {
  readonly port: number;
  readonly reach: AddressReach;
  /** addresses and CIDRs at which this host reaches itself */
  readonly own: readonly string[];
  /** ports of the daemon's listeners */
  readonly ownPorts: readonly number[];
}

/** Kinds that the policy of registries refuses: they belong to this machine or its cloud. */
export const REGISTRY_FORBIDDEN: readonly AddressKind[] = ["loopback", "link-local", "metadata", "unspecified"];

/** Whether the address may be connected to. @throws TypeError when the text is not an address */
export function isAllowed(address: string, { port, reach, own, ownPorts }: Judgement): boolean {
  const kind = addressKind(address);
  const isOwn = leadsToAny(address, own);
  const isHere = isOwn || kind === "loopback" || kind === "unspecified";
  if (isHere && ownPorts.includes(port)) return false;
  if (reach.anyAddress || reach.except.some((range) => isInRange(address, range))) return true;
  if (reach.forbidden === "registry") return !REGISTRY_FORBIDDEN.includes(kind);
  return kind === "public" && !isOwn;
}

/** Whether a request denies connections to an address. @throws TypeError when the text is not an address */
export function isDenied(address: string, { ranges, except }: DeniedRanges): boolean {
  return leadsToAny(address, ranges) && !except.some((range) => isInRange(address, range));
}
