import type { Client } from "../client/client.ts";
import { readEvents } from "../client/events.ts";
import { shownSize } from "./table.ts";

/** Fields of a `progress` event that the progress line shows. */
interface ProgressData {
  readonly step?: string;
  readonly pulled_bytes?: number;
  readonly size_bytes?: number;
}

/**
 * Tells the steps of an operation as its events report them, until its end or until `signal` fires. Steps are only
 * shown: a connection that breaks ends the reports, and is no failure of the wait.
 */
export async function reportSteps(
  client: Client,
  id: string,
  { signal, onStep }: { readonly signal: AbortSignal; readonly onStep: (step: string) => void },
): Promise<void> {
  try {
    const path = `/operations/${encodeURIComponent(id)}/events`;
    for await (const { event, data } of readEvents(client, path, { query: { follow: true }, signal })) {
      if (event === "progress") onStep(stepText((JSON.parse(data) as { readonly data: ProgressData }).data));
    }
  } catch {
    // Expected: the wait has ended, the appliance restarts, or the token lacks the scope.
  }
}

function stepText({ step = "", pulled_bytes: pulledBytes, size_bytes: sizeBytes }: ProgressData): string {
  if (pulledBytes === undefined || sizeBytes === undefined) return step;
  return `${step} ${shownSize(pulledBytes)} of ${shownSize(sizeBytes)}`;
}
