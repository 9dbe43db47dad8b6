import { mkdtempSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { writeLayerIndex } from "../../src/storage/layer-index-writer.ts";
import type { LayerFiles } from "../../src/storage/open-layers.ts";
import { encodeStream, pieces, type TestRecord } from "./index-stream.ts";

/** A directory below the system's one for temporary files; the test removes it. */
export function testDirectory(name: string): string {
  return mkdtempSync(join(tmpdir(), `coppice-${name}-`));
}

let layerNumber = 0;

/** Writes a layer with this content of its disk and these entries. */
export async function makeLayer(
  directory: string,
  records: readonly TestRecord[],
  disk: Uint8Array = new Uint8Array(0),
): Promise<LayerFiles> {
  const base = join(directory, `layer-${layerNumber++}`);
  const files = { disk: `${base}.disk`, index: `${base}.index` };
  await writeFile(files.disk, disk);
  await writeLayerIndex({ stream: pieces(encodeStream(records)), path: files.index, diskBytes: disk.length });
  return files;
}
