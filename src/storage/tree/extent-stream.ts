import { read } from "node:fs";
import { promisify } from "node:util";
import type { ByteRange } from "../../domain/bytes/byte-range.ts";
import type { Extent, LayerEntry } from "../index/layer-index.ts";
import { LayerIndexError } from "../index/layer-index-format.ts";
import { READ_CHUNK_BYTES } from "../limits.ts";
import type { Pacer } from "../pacer.ts";
import type { LayerLease } from "./open-layers.ts";

/** Extents that a stream reads at a time. */
const EXTENTS_PAGE_COUNT = 256;

const readAt = promisify(read);

/**
 * The bytes `[start, end)` of a file of a layer, in chunks of constant size, each read on demand. All chunks share one
 * buffer: a chunk is valid until the next one is requested. The lease is acquired at the first read, and disposed of at
 * the end, on an error, and when the caller stops early.
 */
export async function* extentChunks(
  acquire: () => LayerLease,
  entry: LayerEntry,
  range: ByteRange,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  const buffer = Buffer.allocUnsafeSlow(Math.min(READ_CHUNK_BYTES, range.end - range.start));
  using reader = new ExtentReader(acquire(), entry, range);
  for (let chunk = await reader.next(buffer); chunk !== null; chunk = await reader.next(buffer)) yield chunk;
}

/** The bytes of several ordered, disjoint segments of a file, in chunks like those of `extentChunks`. */
export async function* segmentChunks(
  acquire: () => LayerLease,
  entry: LayerEntry,
  segments: AsyncIterable<{ readonly offset: number; readonly length: number }>,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  const buffer = Buffer.allocUnsafeSlow(READ_CHUNK_BYTES);
  using reader = new ExtentReader(acquire(), entry, { start: 0, end: 0 });
  for await (const { offset, length } of segments) {
    reader.moveTo(offset, offset + length);
    for (let chunk = await reader.next(buffer); chunk !== null; chunk = await reader.next(buffer)) yield chunk;
  }
}

/** Number of extents after which a file counts as fragmented: a guest can split it into millions. */
const ONE_PIECE_EXTENTS_COUNT_MAX = 65_536;

/** The disk offset of `[start, end)` of a file, if it is contiguous there; null when it is fragmented or has holes. */
export async function locateExtents(
  lease: LayerLease,
  entry: LayerEntry,
  range: ByteRange,
  pacer: Pacer,
): Promise<number | null> {
  const { start, end } = range;
  let first = lease.index.extentAt(entry, start);
  const firstMax = first + ONE_PIECE_EXTENTS_COUNT_MAX;
  let position = start;
  let physical: number | null = null;
  while (position < end) {
    if (first >= firstMax) return null;
    if (pacer.shouldYield()) await pacer.yield();
    const page = lease.index.extents(entry, first, EXTENTS_PAGE_COUNT);
    if (page.length === 0) return null;
    for (const extent of page) {
      if (position >= end) break;
      if (extent.logical > position) return null;
      const diskOffset = extent.physical + (position - extent.logical);
      physical ??= diskOffset;
      if (diskOffset !== physical + (position - start)) return null;
      position = extent.logical + extent.length;
    }
    first += page.length;
  }
  return physical;
}

class ExtentReader implements Disposable {
  readonly #lease: LayerLease;
  readonly #entry: LayerEntry;
  #end: number;
  #position: number;
  #page: Extent[] = [];
  /** number of the first extent of the page */
  #pageStart: number;
  /** position in the page of the first extent that is not passed yet */
  #at = 0;

  constructor(lease: LayerLease, entry: LayerEntry, range: ByteRange) {
    this.#lease = lease;
    this.#entry = entry;
    this.#position = range.start;
    this.#end = range.end;
    this.#pageStart = lease.index.extentAt(entry, range.start);
  }

  /** Continues with another range, which must not begin before the end of the last one. */
  moveTo(start: number, end: number): void {
    this.#position = start;
    this.#end = end;
  }

  [Symbol.dispose](): void {
    this.#lease[Symbol.dispose]();
  }

  /** The next chunk, at the start of `buffer`, or null at the end of the range. */
  async next(buffer: Buffer<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer> | null> {
    if (this.#position >= this.#end) return null;
    const length = Math.min(buffer.byteLength, this.#end - this.#position);
    const chunk = buffer.subarray(0, length);
    let filled = 0;
    while (filled < length) {
      const position = this.#position + filled;
      const extent = this.#extentFor(position);
      const holeEnd = Math.min(length, filled + (extent === null ? length : Math.max(0, extent.logical - position)));
      if (holeEnd > filled) {
        chunk.fill(0, filled, holeEnd);
        filled = holeEnd;
      } else if (extent !== null) {
        const take = Math.min(length - filled, extent.logical + extent.length - position);
        await this.#fill(chunk.subarray(filled, filled + take), extent.physical + (position - extent.logical));
        filled += take;
      }
    }
    this.#position += length;
    return chunk;
  }

  /** The first extent that ends after `position`, which must not decrease between calls. */
  #extentFor(position: number): Extent | null {
    for (;;) {
      const extent = this.#page[this.#at];
      if (extent === undefined) {
        this.#pageStart += this.#page.length;
        this.#page = this.#lease.index.extents(this.#entry, this.#pageStart, EXTENTS_PAGE_COUNT);
        this.#at = 0;
        if (this.#page.length === 0) return null;
      } else if (extent.logical + extent.length > position) {
        return extent;
      } else {
        this.#at++;
      }
    }
  }

  async #fill(target: Buffer, position: number): Promise<void> {
    let done = 0;
    while (done < target.length) {
      const { bytesRead } = await readAt(this.#lease.diskFd, target, done, target.length - done, position + done);
      if (bytesRead === 0) throw new LayerIndexError("disk of a layer is shorter than its index says");
      done += bytesRead;
    }
  }
}
