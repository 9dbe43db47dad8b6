import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { type OperationId, parseUuid } from "../domain/ids.ts";
import { writeFileAtomic } from "../system/scratch.ts";
import type { DataLayout } from "./layout.ts";

export const OUTPUT_STREAMS = ["stdout", "stderr"] as const;
export type OutputStream = (typeof OUTPUT_STREAMS)[number];

/** Where the captured bytes of a stream are; an empty one has no file. */
export function outputPath(layout: DataLayout, id: OperationId, stream: OutputStream): string {
  return join(layout.outputs, `${id}.${stream}`);
}

/** Keeps what was captured of an instance's streams. */
export async function writeOutputs(
  layout: DataLayout,
  id: OperationId,
  outputs: Readonly<Record<OutputStream, Uint8Array>>,
): Promise<void> {
  for (const stream of OUTPUT_STREAMS) {
    const bytes = outputs[stream];
    if (bytes.byteLength > 0) await writeFileAtomic(outputPath(layout, id, stream), bytes, 0o600);
  }
}

export async function removeOutputs(layout: DataLayout, id: OperationId): Promise<void> {
  for (const stream of OUTPUT_STREAMS) await rm(outputPath(layout, id, stream), { force: true });
}

/** Operations of which there is an output. */
export async function listOutputs(layout: DataLayout): Promise<OperationId[]> {
  const ids = new Set<OperationId>();
  for (const name of await readdir(layout.outputs)) {
    const id = parseUuid<OperationId>(name.replace(/\.(stdout|stderr)$/, ""));
    if (id !== null) ids.add(id);
  }
  return [...ids];
}
