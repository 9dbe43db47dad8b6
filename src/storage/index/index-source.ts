import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { LayerIndexError } from "./layer-index-format.ts";

/** Where the bytes of a stored index come from. */
export interface IndexSource {
  readonly sizeBytes: number;
  /** true when reads cost no more than memory does */
  readonly isInMemory: boolean;
  /**
   * The bytes from `position` on, as many as `buffer` has: in it, or in memory that is not to be written to.
   * @throws LayerIndexError when there are not as many, or it is closed
   */
  read(buffer: Buffer, position: number): Buffer;
  /** idempotent */
  close(): void;
}

/** Smaller than the reads of a few names are far apart, so that a look-up reads little that it does not need. */
const PAGE_BYTES = 1024;

/**
 * Pages of index files that were read lately; all files share its room, and the oldest page goes first. Every look-up in
 * a large directory begins with the same few entries.
 */
export class IndexPages {
  readonly #kept: ({ readonly pages: Map<number, Buffer>; readonly number: number } | undefined)[];
  #next = 0;

  constructor(bytesMax: number) {
    this.#kept = new Array(Math.max(1, Math.floor(bytesMax / PAGE_BYTES)));
  }

  /** Puts a page among those of its file. */
  keep(pages: Map<number, Buffer>, number: number, page: Buffer): void {
    const oldest = this.#kept[this.#next];
    oldest?.pages.delete(oldest.number);
    this.#kept[this.#next] = { pages, number };
    this.#next = (this.#next + 1) % this.#kept.length;
    pages.set(number, page);
  }
}

/** An index that is read where it is needed, and stays open; `kept` is for pages of it that were read before. */
export function openIndexFile(path: string, kept: IndexPages | null): IndexSource {
  return new IndexFile(path, kept);
}

class IndexFile implements IndexSource {
  readonly isInMemory = false;
  readonly sizeBytes: number;
  readonly #fd: number;
  readonly #kept: IndexPages | null;
  readonly #pages = new Map<number, Buffer>();
  #isOpen = true;

  constructor(path: string, kept: IndexPages | null) {
    this.#fd = openSync(path, "r");
    this.#kept = kept;
    this.sizeBytes = fstatSync(this.#fd).size;
  }

  read(buffer: Buffer, position: number): Buffer {
    if (!this.#isOpen) throw new LayerIndexError("layer index is closed");
    if (position + buffer.length > this.sizeBytes) throw new LayerIndexError("layer index is cut short");
    if (this.#kept === null || buffer.length > PAGE_BYTES) return this.#readFile(buffer, position);
    const number = Math.floor(position / PAGE_BYTES);
    const start = position - number * PAGE_BYTES;
    const end = start + buffer.length;
    const page = this.#page(this.#kept, number);
    if (end <= PAGE_BYTES) return page.subarray(start, end);
    page.copy(buffer, 0, start);
    this.#page(this.#kept, number + 1).copy(buffer, PAGE_BYTES - start, 0, end - PAGE_BYTES);
    return buffer;
  }

  close(): void {
    if (this.#isOpen) closeSync(this.#fd);
    this.#isOpen = false;
  }

  #page(kept: IndexPages, number: number): Buffer {
    const known = this.#pages.get(number);
    if (known !== undefined) return known;
    const start = number * PAGE_BYTES;
    const page = this.#readFile(Buffer.allocUnsafeSlow(Math.min(PAGE_BYTES, this.sizeBytes - start)), start);
    kept.keep(this.#pages, number, page);
    return page;
  }

  #readFile(buffer: Buffer, position: number): Buffer {
    const got = readSync(this.#fd, buffer, 0, buffer.length, position);
    if (got !== buffer.length) throw new LayerIndexError("layer index is cut short");
    return buffer;
  }
}

/** An index that is read as a whole, and needs no descriptor; null when it is larger than `bytesMax`. */
export function loadIndexFile(path: string, bytesMax: number): IndexSource | null {
  const file = openIndexFile(path, null);
  using _file = { [Symbol.dispose]: () => file.close() };
  return file.sizeBytes > bytesMax ? null : indexInMemory(file.read(Buffer.alloc(file.sizeBytes), 0));
}

function indexInMemory(bytes: Buffer): IndexSource {
  return {
    sizeBytes: bytes.length,
    isInMemory: true,
    read: ({ length }, position) => {
      if (position + length > bytes.length) throw new LayerIndexError("layer index is cut short");
      return bytes.subarray(position, position + length);
    },
    close: () => undefined,
  };
}
