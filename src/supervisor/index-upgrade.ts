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

/** File in the data directory with the version that all indexes have at least: no later start looks at them again. */
const MEMO_NAME = "index-format";

export interface IndexUpgradeOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly log: Log;
}

/**
 * Rewrites the indexes that an older version wrote, one after the other, beside everything else: until then they are read
 * as they are. Disposal ends it; the next start goes on.
 */
export class IndexUpgrade implements AsyncDisposable {
  readonly #options: IndexUpgradeOptions;
  readonly #stopped = new AbortController();
  #work: Promise<void> = Promise.resolve();

  constructor(options: IndexUpgradeOptions) {
    this.#options = options;
  }

  begin(): void {
    this.#work = this.#run();
  }

  /** Resolves when it has ended, whatever it came to. */
  get ended(): Promise<void> {
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
      if (count > 0) log.info("indexes of layers were brought up to date", { count, version: FORMAT_VERSION });
    } catch (error) {
      if (!signal.aborted) log.error("indexes of layers were not brought up to date", { error });
    }
  }

  /** False where there is nothing to do, or nothing can be done. */
  async #upgrade(id: LayerId): Promise<boolean> {
    const { db, layout, layers, log } = this.#options;
    // What is being made, or was removed since it was listed, has no row.
    if (!existingLayers(db, [id]).has(id)) return false;
    // Otherwise it could be removed, and the new index come to lie where nobody knows of it.
    using held = layers.hold([id]);
    try {
      const [files] = held.files;
      if (files === undefined) return false;
      return await upgradeIndex(files.index, join(layout.tmp, `index-${id}`), this.#stopped.signal);
    } catch (error) {
      // It is damaged, or missing, and whoever reads it says so.
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
      if (!(error instanceof LayerIndexError)) throw error;
      log.warn("the index of a layer is damaged", { layer: id, error });
      return false;
    }
  }
}

/** Empty where there is none yet. */
async function readMemo(path: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return "";
    throw error;
  }
}
