import { mkdtempSync, readdirSync, readlinkSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { LayerId } from "../../../src/domain/ids.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import { layerBatches } from "../../../src/storage/layers/layers.ts";
import type { DataLayout } from "../../../src/storage/layout.ts";
import type { LayerFiles } from "../../../src/storage/tree/open-layers.ts";
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

/** Ids of all layers that have a disk or an index. */
export async function listLayers(layout: DataLayout): Promise<Set<LayerId>> {
  const all = await Array.fromAsync(layerBatches(layout));
  return new Set(all.flat());
}

/** Files that a process, by default this one, has open, with paths that begin with `prefix`. */
export function filesOpenBelow(prefix: string, pid: number | "self" = "self"): string[] {
  const paths = readdirSync(`/proc/${pid}/fd`).map((fd) => {
    try {
      return readlinkSync(`/proc/${pid}/fd/${fd}`);
    } catch (error) {
      // The descriptor of the listing itself is closed by now, and others may be.
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return "";
      throw error;
    }
  });
  return paths.filter((path) => path.startsWith(prefix)).sort();
}
