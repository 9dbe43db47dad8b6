import type { NetworkRequest } from "../../src/domain/network.ts";
import { InstanceNetwork, type NetworkListener } from "../../src/supervisor/network/instance-network.ts";
import { StandInGate } from "./guests/stand-in-gate.ts";
import { NETWORK_SETTINGS } from "./network-scene.ts";

/** A listener that does nothing. */
export const DEAF_LISTENER: NetworkListener = {
  ...{ counted: () => undefined, first: () => undefined, changed: () => undefined, moved: () => undefined },
  ...{ open: () => undefined, failed: () => undefined },
};

/** The network of an instance, whose outside has nothing. By default the instance has none at first. */
export function quietNetwork(policy: NetworkRequest | null = null): InstanceNetwork {
  const settings = NETWORK_SETTINGS;
  return new InstanceNetwork({
    ...{ gate: new StandInGate(), settings, policy, account: "a", listener: DEAF_LISTENER, clock: Date.now },
  });
}
