import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Database } from "../db/database.ts";
import { existingLayers } from "../db/layers.ts";
import type { LayerId } from "../domain/ids.ts";
import type { Log } from "../log.ts";
import { upgradeIndex } from "../storage/index/index-upgrade.ts";
import { FORMAT_VERSION, LayerIndexError } from "../storage/index/layer-index-format.ts";
import type { LayerStore } from "../storage/layers/layer-store.ts";
import type { DataLayout } from "../storage/layout.ts";
import { writeFileAtomic } from "../system/scratch.ts";

/** File in the data directory with the lowest version of all indexes; when it is current, they are not read again. */
const MEMO_NAME = "index-format";

export interface IndexUpgradeOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly log: Log;
}

/**
 * Rewrites indexes of an older format version in the background, one at a time. Readers take both formats. Disposal stops
 * it; the next start goes on.
 */
export class IndexUpgrade implements AsyncDisposable {
  readonly #options: IndexUpgradeOptions;
  readonly #stopped = new AbortController();
  #work: Promise<void> = Promise.resolve();

  constructor(options: IndexUpgradeOptions) {
    this.#options = options;
  }

  /** Resolves when it has ended, with or without success. */
  begin(): Promise<void> {
    this.#work = this.#run();
    return this.#work;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort();
    await this.#work;
  }

  async #run(): Promise<void> {
    const { layout, layers, log } = this.#options;
    const { signal } = this.#stopped;
    const memo = join(layout.root, MEMO_NAME);
    try {
      if (Number(await readMemo(memo)) >= FORMAT_VERSION) return;
      let count = 0;
      for await (const ids of layers.batches()) {
        for (const id of ids) {
          signal.throwIfAborted();
          if (await this.#upgrade(id)) count += 1;
        }
      }
      await writeFileAtomic(memo, String(FORMAT_VERSION));
      if (count > 0) log.info("upgraded the indexes of layers", { count, version: FORMAT_VERSION });
    } catch (error) {
      if (!signal.aborted) log.error("cannot upgrade the indexes of layers", { error });
    }
  }

  /** False when the index is current, missing or damaged. */
  async #upgrade(id: LayerId): Promise<boolean> {
    const { db, layout, layers, log } = this.#options;
    // A layer without a row is being made, or was removed after it was listed.
    if (!existingLayers(db, [id]).has(id)) return false;
    // The hold keeps the layer from being removed meanwhile, which would leave the new index as an orphan.
    using held = layers.hold([id]);
    try {
      const [files] = held.files;
      if (files === undefined) return false;
      return await upgradeIndex(files.index, join(layout.tmp, `index-${id}`), this.#stopped.signal);
    } catch (error) {
      // Readers report a missing index.
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
      if (!(error instanceof LayerIndexError)) throw error;
      log.warn("the index of a layer is damaged", { layer: id, error });
      return false;
    }
  }
}

/** Content of the memo; empty when there is none. */
async function readMemo(path: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return "";
    throw error;
  }
}
