import { readFileSync } from "node:fs";
import type { ByteString } from "../../../src/domain/tree/guest-path.ts";
import type { LayerEntry, LayerIndex } from "../../../src/storage/index/layer-index.ts";
import { decodeHeader, HEADER_BYTES, type IndexHeader } from "../../../src/storage/index/layer-index-format.ts";

/** The entry at a path of one layer, without following symlinks; null when none exists. */
export function entryAt(index: LayerIndex, path: string): LayerEntry | null {
  let entry: LayerEntry | null = index.root();
  for (const name of path.split("/")) {
    if (name !== "" && entry !== null) entry = index.child(entry, name as ByteString);
  }
  return entry;
}

/** Children of a path of one layer; empty when there is no such directory. */
export function childrenAt(
  index: LayerIndex,
  path: string,
  after: ByteString | null,
  limit: number,
): readonly LayerEntry[] {
  const directory = entryAt(index, path);
  return directory === null ? [] : index.children(directory, after, limit);
}

/** The header of a stored index. */
export function headerOf(path: string): IndexHeader {
  const bytes = readFileSync(path);
  return decodeHeader(bytes.subarray(0, HEADER_BYTES), bytes.length);
}
