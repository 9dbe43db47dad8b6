import { read } from "node:fs";
import { promisify } from "node:util";
import type { ByteRange } from "../../domain/byte-range.ts";
import type { Extent, LayerEntry } from "../index/layer-index.ts";
import { LayerIndexError } from "../index/layer-index-format.ts";
import type { LayerLease } from "../layers/open-layers.ts";
import { READ_CHUNK_BYTES } from "../limits.ts";
import type { Pacer } from "../pacer.ts";

/** Extents that a stream holds at a time. */
const EXTENTS_PAGE_COUNT = 256;

const readAt = promisify(read);

/**
 * The bytes `[start, end)` of a file of a layer, in chunks of constant size, each read when it is asked for. All chunks
 * share one buffer: a chunk is valid only until the next one is asked for. The lease is taken at the first read and given
 * back at the end, at an error, and when the caller stops early.
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

/** The bytes of several parts of a file, which are in order and do not overlap, as `extentChunks` gives those of one. */
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

/** Extents that are looked at before a file counts as not in one piece: a guest can cut it into millions. */
const ONE_PIECE_EXTENTS_COUNT_MAX = 65_536;

/** Where on the disk `[start, end)` of a file begins, when it is there in one piece; null when it has gaps or holes. */
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
    if (pacer.due()) await pacer.yield();
    const page = lease.index.extents(entry, first, EXTENTS_PAGE_COUNT);
    if (page.length === 0) return null;
    for (const extent of page) {
      if (position >= end) break;
      if (extent.logical > position) return null;
      const place = extent.physical + (position - extent.logical);
      physical ??= place;
      if (place !== physical + (position - start)) return null;
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
  /** of the first extent of the page that may still matter */
  #at = 0;

  constructor(lease: LayerLease, entry: LayerEntry, range: ByteRange) {
    this.#lease = lease;
    this.#entry = entry;
    this.#position = range.start;
    this.#end = range.end;
    this.#pageStart = lease.index.extentAt(entry, range.start);
  }

  /** Goes on at another range, which does not begin before the end of the last one. */
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

  /** The first extent that ends after `position`, which never goes back. */
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
