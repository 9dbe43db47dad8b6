import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { LayerIndexError } from "./layer-index-format.ts";

/** The bytes of a stored index. */
export interface IndexSource {
  readonly sizeBytes: number;
  /** true when reads are as cheap as memory */
  readonly isInMemory: boolean;
  /**
   * The bytes from `position` on, as many as `buffer` holds. The result is `buffer`, or memory that must not be changed.
   * @throws LayerIndexError when the index is too short or closed
   */
  read(buffer: Buffer, position: number): Buffer;
  /** idempotent */
  close(): void;
}

/** Size of a cached page, in `bytes`: small, because the reads of a look-up are far apart. */
const PAGE_BYTES = 1024;

/**
 * A cache of recently read pages of index files. All files share it, and the oldest page is dropped first. Look-ups in a
 * large directory all begin with the same few entries.
 */
export class IndexPages {
  readonly #cache: ({ readonly pages: Map<number, Buffer>; readonly number: number } | undefined)[];
  #next = 0;

  constructor(bytesMax: number) {
    this.#cache = new Array(Math.max(1, Math.floor(bytesMax / PAGE_BYTES)));
  }

  /** Adds a page to those of its file. */
  add(pages: Map<number, Buffer>, number: number, page: Buffer): void {
    const oldest = this.#cache[this.#next];
    oldest?.pages.delete(oldest.number);
    this.#cache[this.#next] = { pages, number };
    this.#next = (this.#next + 1) % this.#cache.length;
    pages.set(number, page);
  }
}

/** Opens an index file, which stays open and is read on demand; `cache` keeps pages of it. */
export function openIndexFile(path: string, cache: IndexPages | null): IndexSource {
  return new IndexFile(path, cache);
}

class IndexFile implements IndexSource {
  readonly isInMemory = false;
  readonly sizeBytes: number;
  readonly #fd: number;
  readonly #cache: IndexPages | null;
  readonly #pages = new Map<number, Buffer>();
  #isOpen = true;

  constructor(path: string, cache: IndexPages | null) {
    this.#fd = openSync(path, "r");
    this.#cache = cache;
    this.sizeBytes = fstatSync(this.#fd).size;
  }

  read(buffer: Buffer, position: number): Buffer {
    if (!this.#isOpen) throw new LayerIndexError("layer index is closed");
    if (position + buffer.length > this.sizeBytes) throw new LayerIndexError("layer index is cut short");
    if (this.#cache === null || buffer.length > PAGE_BYTES) return this.#readFile(buffer, position);
    const number = Math.floor(position / PAGE_BYTES);
    const start = position - number * PAGE_BYTES;
    const end = start + buffer.length;
    const page = this.#page(this.#cache, number);
    if (end <= PAGE_BYTES) return page.subarray(start, end);
    page.copy(buffer, 0, start);
    this.#page(this.#cache, number + 1).copy(buffer, PAGE_BYTES - start, 0, end - PAGE_BYTES);
    return buffer;
  }

  close(): void {
    if (this.#isOpen) closeSync(this.#fd);
    this.#isOpen = false;
  }

  #page(cache: IndexPages, number: number): Buffer {
    const cached = this.#pages.get(number);
    if (cached !== undefined) return cached;
    const start = number * PAGE_BYTES;
    const page = this.#readFile(Buffer.allocUnsafeSlow(Math.min(PAGE_BYTES, this.sizeBytes - start)), start);
    cache.add(this.#pages, number, page);
    return page;
  }

  #readFile(buffer: Buffer, position: number): Buffer {
    const got = readSync(this.#fd, buffer, 0, buffer.length, position);
    if (got !== buffer.length) throw new LayerIndexError("layer index is cut short");
    return buffer;
  }
}

/** Reads a whole index into memory, without keeping a descriptor; null when it is larger than `bytesMax`. */
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
