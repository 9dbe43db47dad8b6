import type { LayerEntry } from "../index/layer-index.ts";
import type { LayerLease } from "../layers/open-layers.ts";
import type { Pacer } from "../pacer.ts";
import { paddingOf, TAR_BLOCK_BYTES } from "./tar-format.ts";

/** Extents that are looked at in one piece. */
const PAGE_COUNT = 256;
/** A file with fewer `bytes` of holes is stored whole. */
const HOLES_BYTES_MIN = 8192;
/** Text of a map that is gathered before it is sent. */
const MAP_PIECE_CHARACTERS = 65_536;

/** Part of a file that an archive stores; both ends lie on blocks, except for the end of the file. */
export interface SparseSegment {
  readonly offset: number;
  readonly length: number;
}

/** What a sparse file takes in an archive: the map first, then the segments without gaps. */
export interface SparseLayout {
  readonly segmentCount: number;
  /** of the map, padded to a block */
  readonly mapBytes: number;
  readonly dataBytes: number;
}

/**
 * The segments of a file with data, in order. Readers differ in whether they expect segments to begin on a block
 * of the archive, so that all but the last one are whole blocks.
 */
export async function* sparseSegments(
  lease: LayerLease,
  entry: LayerEntry,
  pacer: Pacer,
): AsyncGenerator<SparseSegment, void, undefined> {
  let start = 0;
  let end = 0;
  for (let first = 0; first < entry.extentCount; first += PAGE_COUNT) {
    if (pacer.due()) await pacer.yield();
    for (const { logical, length } of lease.index.extents(entry, first, PAGE_COUNT)) {
      const from = logical - (logical % TAR_BLOCK_BYTES);
      if (from > end) {
        if (end > start) yield { offset: start, length: end - start };
        start = from;
      }
      end = Math.min(entry.size, logical + length + paddingOf(logical + length));
    }
  }
  if (end > start) yield { offset: start, length: end - start };
}

/**
 * How a file would be stored with its holes; null when that does not pay. A guest can make a file of millions of
 * extents, so the event loop goes on meanwhile.
 */
export async function sparseLayout(lease: LayerLease, entry: LayerEntry, pacer: Pacer): Promise<SparseLayout | null> {
  let [segmentCount, textBytes, dataBytes, end] = [0, 0, 0, 0];
  for await (const segment of sparseSegments(lease, entry, pacer)) {
    segmentCount++;
    textBytes += mapLine(segment).length;
    dataBytes += segment.length;
    end = segment.offset + segment.length;
  }
  if (end < entry.size) {
    segmentCount++;
    textBytes += mapLine({ offset: entry.size, length: 0 }).length;
  }
  textBytes += `${segmentCount}\n`.length;
  const mapBytes = textBytes + paddingOf(textBytes);
  return entry.size - dataBytes - mapBytes < HOLES_BYTES_MIN ? null : { segmentCount, mapBytes, dataBytes };
}

/** The map as text, piece by piece: the number of segments, then offset and length of each. */
export async function* sparseMap(
  lease: LayerLease,
  entry: LayerEntry,
  layout: SparseLayout,
  pacer: Pacer,
): AsyncGenerator<string, void, undefined> {
  let bytes = 0;
  let end = 0;
  let text = `${layout.segmentCount}\n`;
  for await (const segment of sparseSegments(lease, entry, pacer)) {
    text += mapLine(segment);
    end = segment.offset + segment.length;
    if (text.length < MAP_PIECE_CHARACTERS) continue;
    bytes += text.length;
    yield text;
    text = "";
  }
  // An empty segment at the end tells the size of a file that ends in a hole.
  if (end < entry.size) text += mapLine({ offset: entry.size, length: 0 });
  bytes += text.length;
  yield text + "\0".repeat(layout.mapBytes - bytes);
}

function mapLine({ offset, length }: SparseSegment): string {
  return `${offset}\n${length}\n`;
}
