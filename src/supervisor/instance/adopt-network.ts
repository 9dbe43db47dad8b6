import { ApiError } from "../../domain/errors.ts";
import { withinTime } from "../../system/waiting.ts";
import { explain } from "../machines/machine-errors.ts";
import type { InstanceNetwork } from "../network/instance-network.ts";
import type { RunningInstance } from "./running-instance.ts";

/** How long a guest may take to adopt a network. It handles requests in order, and some of them are long. */
const ADOPTION_MS_MAX = 30_000;

/**
 * Tells a guest whether it has a network now. Never throws for one that has lost it: the host refuses its connections,
 * whatever it believes.
 * @throws ApiError when a guest that should have a network did not adopt it
 */
export async function adoptNetwork(
  { agent, machine }: Pick<RunningInstance, "agent" | "machine">,
  network: InstanceNetwork,
): Promise<void> {
  const isOn = network.policy !== null;
  const late = (): never => {
    throw new ApiError("unavailable", "the guest did not adopt its network in time");
  };
  try {
    await withinTime(agent.network(network, isOn), ADOPTION_MS_MAX, late);
  } catch (error) {
    if (isOn) throw await explain(error, machine);
  }
}
