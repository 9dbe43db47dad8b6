import type { Client } from "../client/client.ts";
import { operationEvents } from "../client/operation-events.ts";
import { shownSize } from "./table.ts";

/** Fields of a `progress` event that the progress line shows. */
interface ProgressData {
  readonly step?: string;
  readonly pulled_bytes?: number;
  readonly size_bytes?: number;
}

/**
 * Tells the steps of an operation as its events report them, until its end or until `signal` fires. Steps are only
 * shown: what ends the reports early is no failure of the wait.
 */
export async function reportSteps(
  client: Client,
  id: string,
  { signal, onStep }: { readonly signal: AbortSignal; readonly onStep: (step: string) => void },
): Promise<void> {
  try {
    for await (const { type, data } of operationEvents(client, id, { follow: true, signal })) {
      if (type === "progress") onStep(stepText(data as ProgressData));
    }
  } catch {
    // Expected: the wait has ended, the appliance stays away, or the token lacks the scope.
  }
}

function stepText({ step = "", pulled_bytes: pulledBytes, size_bytes: sizeBytes }: ProgressData): string {
  if (pulledBytes === undefined || sizeBytes === undefined) return step;
  return `${step} ${shownSize(pulledBytes)} of ${shownSize(sizeBytes)}`;
}
