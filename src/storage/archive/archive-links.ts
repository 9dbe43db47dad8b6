import type { ByteString } from "../../domain/guest-path.ts";
import type { ByteBudget } from "../byte-budget.ts";
import type { Place } from "../tree/directory-merge.ts";

/** What a remembered path takes beside its characters and those of its key, in `bytes`, nearly. */
const LINK_BYTES = 128;

/**
 * Remembers where files with several names came by first, until all their names did, or until disposal. All archives
 * share one budget; where nothing is left of it, further names become files of their own.
 */
export class LinkTable implements Disposable {
  readonly #budget: ByteBudget;
  readonly #paths = new Map<string, { readonly path: ByteString; left: number }>();
  #bytes = 0;

  constructor(budget: ByteBudget) {
    this.#budget = budget;
  }

  /** The path under which the file is in the archive already, or null. */
  firstOf({ layer, entry }: Place, path: ByteString): ByteString | null {
    if (entry.type === "d" || entry.nlink < 2) return null;
    const key = `${entry.inode}@${layer.index}`;
    const known = this.#paths.get(key);
    if (known !== undefined) {
      known.left--;
      if (known.left === 0) this.#forget(key, known.path);
      return known.path;
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
