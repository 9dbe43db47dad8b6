import type { BranchImage, BranchOperation, BranchRow, Change } from "../../../client/types.ts";
import type { ImageRow, RunRow, RunState } from "./forest.ts";

/** A row or change of the branches, reduced to the fields of the drawing. */
export type Row =
  | { readonly is: "image"; readonly image: ImageRow }
  | { readonly is: "operation"; readonly run: RunRow; readonly result: string | null }
  | { readonly is: "deleted"; readonly id: string }
  | { readonly is: "end"; readonly hasOlder: boolean };

const STATES: Readonly<Record<BranchOperation["status"], RunState>> = {
  PENDING: "waiting",
  EXECUTING: "running",
  SUCCESS: "ended",
  FAILED: "failed",
  CANCELLED: "cancelled",
};

/** The row for the drawing; null if it is not about an image or an operation. */
export function rowOf(wire: BranchRow | Change): Row | null {
  switch (wire.type) {
    case "image":
      return { is: "image", image: imageOf(wire) };
    case "operation":
      return { is: "operation", run: runOf(wire), result: wire.result ?? null };
    case "deleted":
      return { is: "deleted", id: wire.uuid };
    case "end":
      return { is: "end", hasOlder: wire.older };
    default:
      return null;
  }
}

function imageOf(wire: BranchImage): ImageRow {
  return {
    id: wire.uuid,
    parentId: wire.parent ?? null,
    skipped: wire.skipped ?? 0,
    tag: wire.tag ?? null,
    createdAt: Date.parse(wire.created_at),
    origin: wire.kind,
    command: wire.about ?? null,
    exitCode: wire.exit_code ?? null,
    timedOut: wire.timed_out === true,
    addedBytes: wire.size_bytes,
    operation: wire.operation,
  };
}

function runOf(wire: BranchOperation): RunRow {
  return {
    id: wire.uuid,
    imageId: wire.image ?? null,
    origin: wire.kind,
    state: STATES[wire.status],
    command: wire.about ?? null,
    since: Date.parse(wire.started_at ?? wire.created_at),
  };
}
