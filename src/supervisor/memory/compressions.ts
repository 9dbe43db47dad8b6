import { join } from "node:path";
import type { Database } from "../../db/database.ts";
import { existingMemoryImages, setMemorySize } from "../../db/sandboxes/memory-images.ts";
import type { MemoryImageId } from "../../domain/ids.ts";
import type { Log } from "../../log.ts";
import type { DataLayout } from "../../storage/layout.ts";
import type { ForkedMachines } from "../machines/machine-source.ts";
import { imageBytes } from "./image-files.ts";

export interface CompressionsOptions {
  readonly db: Database;
  readonly layout: Pick<DataLayout, "memoryImages">;
  readonly log: Log;
  readonly machines: Pick<ForkedMachines, "compressFork">;
}

/** Compresses kept memory in the background, one image at a time. Disposal ends that. */
export class Compressions implements AsyncDisposable {
  readonly #options: CompressionsOptions;
  readonly #queued = new Set<MemoryImageId>();
  readonly #stopped = new AbortController();
  #current: { readonly id: MemoryImageId; readonly over: AbortController; readonly done: Promise<void> } | null = null;

  constructor(options: CompressionsOptions) {
    this.#options = options;
  }

  /** Compresses an image when it is its turn; one that is compressed stays as it is. */
  begin(id: MemoryImageId): void {
    this.#queued.add(id);
    this.#next();
  }

  /** Resolves when the image is not being compressed, and will not be. */
  async end(id: MemoryImageId): Promise<void> {
    this.#queued.delete(id);
    if (this.#current?.id !== id) return;
    this.#current.over.abort(new Error("the image is needed"));
    await this.#current.done;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort(new Error("the service stops"));
    this.#queued.clear();
    await this.#current?.done;
  }

  #next(): void {
    const [id] = this.#queued;
    if (id === undefined || this.#current !== null || this.#stopped.signal.aborted) return;
    this.#queued.delete(id);
    const over = new AbortController();
    const signal = AbortSignal.any([over.signal, this.#stopped.signal]);
    const done = this.#compress(id, signal).then(() => {
      this.#current = null;
      this.#next();
    });
    this.#current = { id, over, done };
  }

  /** Never throws: an image that is not compressed is as good. */
  async #compress(id: MemoryImageId, signal: AbortSignal): Promise<void> {
    const { db, layout, log, machines } = this.#options;
    const directory = join(layout.memoryImages, id);
    try {
      if (!existingMemoryImages(db, [id]).has(id) || !(await Bun.file(join(directory, "memory")).exists())) return;
      await machines.compressFork(directory, signal);
      setMemorySize(db, id, await imageBytes(directory));
    } catch (error) {
      if (!signal.aborted) log.warn("cannot compress the kept memory of a sandbox", { memory_image: id, error });
    }
  }
}
