import { readFileSync, statSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { type OperationId, parseUuid } from "../domain/ids.ts";
import { writeFileAtomic } from "../system/scratch.ts";
import { type DataLayout, nameBatches } from "./layout.ts";

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
  const written = OUTPUT_STREAMS.filter((stream) => outputs[stream].byteLength > 0);
  await Promise.all(written.map((stream) => writeFileAtomic(outputPath(layout, id, stream), outputs[stream], 0o600)));
}

/** A file of this size is read within microseconds, when the way to a thread and back would take ten times that. */
const DIRECT_BYTES_MAX = 65_536;

/** What was captured of a stream. */
export async function readOutput(layout: DataLayout, id: OperationId, stream: OutputStream): Promise<Uint8Array> {
  const path = outputPath(layout, id, stream);
  const found = statSync(path, { throwIfNoEntry: false });
  if (found === undefined) return new Uint8Array();
  return found.size <= DIRECT_BYTES_MAX ? readFileSync(path) : await Bun.file(path).bytes();
}

export async function removeOutputs(layout: DataLayout, id: OperationId): Promise<void> {
  for (const stream of OUTPUT_STREAMS) await rm(outputPath(layout, id, stream), { force: true });
}

/** Operations of which there is an output, some at a time; one can come twice. */
export async function* outputBatches(layout: DataLayout): AsyncGenerator<OperationId[]> {
  for await (const names of nameBatches(layout.outputs)) {
    const ids = names.map((name) => parseUuid<OperationId>(name.replace(/\.(stdout|stderr)$/, "")));
    yield [...new Set(ids.filter((id) => id !== null))];
  }
}
