import type { Progress } from "../../client/operations.ts";
import { shownSize } from "../../domain/text/shown.ts";

/** A step of an operation as a progress line shows it. */
export function stepText({ step, pulledBytes, sizeBytes }: Progress): string {
  if (pulledBytes === null || sizeBytes === null) return step;
  return `${step} ${shownSize(pulledBytes)} of ${shownSize(sizeBytes)}`;
}
