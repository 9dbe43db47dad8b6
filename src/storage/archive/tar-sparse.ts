import type { LayerEntry } from "../index/layer-index.ts";
import type { Pacer } from "../pacer.ts";
import type { LayerLease } from "../tree/open-layers.ts";
import { paddingOf, TAR_BLOCK_BYTES } from "./tar-format.ts";

/** Extents that are read at a time. */
const PAGE_COUNT = 256;
/** A file with fewer `bytes` of holes is stored without holes. */
const HOLES_BYTES_MIN = 8192;
/** Length of the pieces in which a map is sent, in characters. */
const MAP_PIECE_CHARACTERS = 65_536;

/** A part of a file that the archive stores. It begins and ends at a block, or at the end of the file. */
export interface SparseSegment {
  readonly offset: number;
  readonly length: number;
}

/** Sizes of a sparse file in an archive: the map, then the segments without gaps. */
export interface SparseLayout {
  readonly segmentCount: number;
  /** length of the map, padded to a block, in `bytes` */
  readonly mapBytes: number;
  readonly dataBytes: number;
}

/**
 * The segments of a file that contain data, in order. Segments are whole blocks, except for the last one, because some
 * extractors expect each segment to begin at a block of the archive.
 */
export async function* sparseSegments(
  lease: LayerLease,
  entry: LayerEntry,
  pacer: Pacer,
): AsyncGenerator<SparseSegment, void, undefined> {
  let start = 0;
  let end = 0;
  for (let first = 0; first < entry.extentCount; first += PAGE_COUNT) {
    if (pacer.shouldYield()) await pacer.yield();
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
 * The layout of a file with its holes; null when that saves too little. A guest can give a file millions of extents, so
 * the computation yields to the event loop.
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

/** The map as text, in pieces: the number of segments, then offset and length of each. */
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
  // An empty segment at the end gives the size of a file that ends with a hole.
  if (end < entry.size) text += mapLine({ offset: entry.size, length: 0 });
  bytes += text.length;
  yield text + "\0".repeat(layout.mapBytes - bytes);
}

function mapLine({ offset, length }: SparseSegment): string {
  return `${offset}\n${length}\n`;
}
