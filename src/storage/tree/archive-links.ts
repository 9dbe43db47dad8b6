import type { ByteString } from "../../domain/tree/guest-path.ts";
import type { ByteBudget } from "../byte-budget.ts";
import type { LocatedEntry } from "./directory-merge.ts";

/** Approximate memory of an entry without its path and its key, in `bytes`. */
const LINK_BYTES = 128;

/**
 * Remembers the first path of each hard-linked file, until all of its names have been written or until disposal. All
 * archives share one memory budget; when it is used up, further names become separate files.
 */
export class LinkTable implements Disposable {
  readonly #budget: ByteBudget;
  readonly #paths = new Map<string, { readonly path: ByteString; left: number }>();
  #bytes = 0;

  constructor(budget: ByteBudget) {
    this.#budget = budget;
  }

  /** The path under which the archive already contains the file; null when it does not. */
  firstOf({ layer, entry }: LocatedEntry, path: ByteString): ByteString | null {
    if (entry.type === "d" || entry.nlink < 2) return null;
    const key = `${entry.inode}@${layer.index}`;
    const link = this.#paths.get(key);
    if (link !== undefined) {
      link.left--;
      if (link.left === 0) this.#forget(key, link.path);
      return link.path;
    }
    const bytes = bytesOf(key, path);
    if (this.#budget.take(bytes)) {
      this.#paths.set(key, { path, left: entry.nlink - 1 });
      this.#bytes += bytes;
    }
    return null;
  }

  [Symbol.dispose](): void {
    this.#paths.clear();
    this.#budget.give(this.#bytes);
    this.#bytes = 0;
  }

  #forget(key: string, path: ByteString): void {
    this.#paths.delete(key);
    this.#budget.give(bytesOf(key, path));
    this.#bytes -= bytesOf(key, path);
  }
}

function bytesOf(key: string, path: ByteString): number {
  return key.length + path.length + LINK_BYTES;
}
