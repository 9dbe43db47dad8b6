import type { OperationId } from "../../src/domain/ids.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../src/domain/output.ts";
import type { DataLayout } from "../../src/storage/layout.ts";
import { outputPath } from "../../src/storage/outputs.ts";
import { writeFileAtomic } from "../../src/system/scratch.ts";

/** Keeps what was captured of an instance's streams as versions without event logs do: a file each, none for an empty one. */
export async function writeOutputFiles(
  layout: DataLayout,
  id: OperationId,
  outputs: Readonly<Record<OutputStream, Uint8Array | string>>,
): Promise<void> {
  for (const stream of OUTPUT_STREAMS) {
    const bytes = outputs[stream];
    if (bytes.length > 0) await writeFileAtomic(outputPath(layout, id, stream), bytes);
  }
}
