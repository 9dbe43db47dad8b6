import { hasEnded } from "../../client/operations.ts";
import type { Operation } from "../../client/types.ts";
import { bytesText } from "../text/format.ts";
import type { EventFeed } from "./event-feed-reader.ts";

interface Step {
  readonly step: string;
  readonly pulledBytes: number | null;
  readonly sizeBytes: number | null;
}

/** The steps of an import or a checkpoint; the last one is in progress. */
export function ProgressPanel({ operation, feed }: { readonly operation: Operation; readonly feed: EventFeed }) {
  const steps = feed.events
    .filter(({ type }) => type === "progress")
    .map(({ data }) => stepOf(data as Record<string, unknown>));
  const isOver = hasEnded(operation);
  if (steps.length === 0) return isOver ? null : <p class="muted">Not started yet.</p>;
  return (
    <section class="stack gap-3 shrink" aria-label="Progress">
      <h2 class="row gap-2 text-size strong">Progress</h2>
      <ol class="run-steps stack gap-2" aria-live="polite" aria-relevant="additions">
        {steps.map(({ step, pulledBytes, sizeBytes }, index) => {
          const isLast = index === steps.length - 1 && !isOver;
          return (
            <li
              key={step}
              class={isLast ? "run-step row wrap gap-1-3 run-step-now medium" : "run-step row wrap gap-1-3"}
            >
              <span class="run-step-name">{STEPS[step] ?? step}</span>
              {pulledBytes === null ? null : (
                <span class="number muted">
                  {bytesText(pulledBytes)}
                  {sizeBytes === null ? "" : ` of ${bytesText(sizeBytes)}`}
                </span>
              )}
              {isLast && pulledBytes !== null && sizeBytes !== null ? (
                <progress value={pulledBytes} max={sizeBytes} aria-label={STEPS[step] ?? step} />
              ) : null}
            </li>
          );
        })}
      </ol>
    </section>
  );
}

const STEPS: Readonly<Record<string, string>> = {
  resolving: "Looking for the image",
  pulling: "Pulling its layers",
  unpacking: "Unpacking",
  building: "Building the disk",
  copying: "Copying the disk",
  indexing: "Listing its files",
};

function stepOf({ step, pulled_bytes: pulled, size_bytes: size }: Record<string, unknown>): Step {
  return {
    step: String(step),
    pulledBytes: typeof pulled === "number" ? pulled : null,
    sizeBytes: typeof size === "number" ? size : null,
  };
}
