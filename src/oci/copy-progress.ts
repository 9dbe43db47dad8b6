import { lstat, opendir } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import type { Descriptor } from "./manifest.ts";

/** How much of a layer has arrived. */
export interface LayerProgress {
  readonly digest: string;
  /** compressed size that the manifest gives */
  readonly sizeBytes: number;
  /** never more than `sizeBytes`, and never less than in an earlier report */
  readonly pulledBytes: number;
}

/** How much of an image has arrived. */
export interface CopyProgress {
  /** all layers together, each digest once */
  readonly sizeBytes: number;
  readonly pulledBytes: number;
  /** layers that have grown since the last report, lowest first; at most LAYERS_REPORTED_MAX */
  readonly layers: readonly LayerProgress[];
}

/** Watches one copy. Disposal ends that without another report. */
export interface CopyWatch extends AsyncDisposable {
  /** Reports the rest, when the copy has succeeded. */
  finish(): Promise<void>;
}

const INTERVAL_MS = 250;
/** The pause between two readings grows by this share of the elapsed time, so that an hour has a few hundred reports. */
const INTERVAL_GROWTH_RATIO = 0.01;
/** An image may have thousands of small layers, and one report must fit one event. */
const LAYERS_REPORTED_MAX = 32;
/** Entries in addition to those of the layers: the manifest, the config, the version, and files of layers that have not ended. */
const OTHER_ENTRIES_COUNT_MAX = 64;
const BLOB_NAME = /^[0-9a-f]{64}$/;
/** Prefix of the name that a layer's file has until all of it is there (containers/image, directory transport). */
const PARTIAL_PREFIX = "dir-put-blob";

/**
 * Reports how a copy to a directory (`dir:`) grows, while skopeo writes it. The name of a partial file does not identify its layer: skopeo
 * starts layers from the lowest to the highest, so the oldest partial file is assigned to the lowest layer that has none.
 * A later report corrects a wrong assignment, but never reduces a count.
 * @param layers as the manifest lists them
 */
export function watchCopy(
  directory: string,
  layers: readonly Descriptor[],
  onProgress: (progress: CopyProgress) => void,
): CopyWatch {
  const stopped = new AbortController();
  const count = new LayerCount(layers);
  const report = (): void => {
    for (let progress = count.changes(); progress !== null; progress = count.changes()) onProgress(progress);
  };
  const watch = watchLoop(directory, count, report, stopped.signal);
  return {
    finish: async () => {
      stopped.abort();
      await watch;
      count.complete();
      report();
    },
    [Symbol.asyncDispose]: async () => {
      stopped.abort();
      await watch;
    },
  };
}

async function watchLoop(directory: string, count: LayerCount, report: () => void, signal: AbortSignal): Promise<void> {
  const startedAt = performance.now();
  while (!signal.aborted) {
    const pauseMs = INTERVAL_MS + INTERVAL_GROWTH_RATIO * (performance.now() - startedAt);
    // AbortError: the watch has ended.
    await setTimeout(pauseMs, undefined, { signal }).catch(() => undefined);
    if (signal.aborted) return;
    await look(directory, count);
    report();
  }
}

/** Reads the sizes of the files of a copy. A missing directory counts as empty. */
async function look(directory: string, count: LayerCount): Promise<void> {
  const partial: PartialFile[] = [];
  let entriesLeft = count.layersCount + OTHER_ENTRIES_COUNT_MAX;
  try {
    for await (const { name } of await opendir(directory)) {
      entriesLeft -= 1;
      if (entriesLeft < 0) break;
      if (BLOB_NAME.test(name)) count.ended(`sha256:${name}`);
      if (name.startsWith(PARTIAL_PREFIX)) {
        const { ino, size, birthtimeMs } = await lstat(join(directory, name));
        partial.push({ inode: ino, sizeBytes: size, bornAt: birthtimeMs });
      }
    }
  } catch (error) {
    // A partial file gets its final name between the two calls.
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  count.grown(partial.sort((a, b) => a.bornAt - b.bornAt || a.inode - b.inode));
}

interface PartialFile {
  readonly inode: number;
  readonly sizeBytes: number;
  /** `milliseconds` since the epoch */
  readonly bornAt: number;
}

interface Layer {
  readonly digest: string;
  readonly sizeBytes: number;
  pulledBytes: number;
  reportedBytes: number;
  /** the partial file that is assigned to it */
  inode: number | null;
}

/** Counts the bytes of each layer. */
class LayerCount {
  readonly #layers = new Map<string, Layer>();
  readonly #sizeBytes: number;

  constructor(descriptors: readonly Descriptor[]) {
    for (const { digest, size: sizeBytes } of descriptors) {
      this.#layers.set(digest, { digest, sizeBytes, pulledBytes: 0, reportedBytes: 0, inode: null });
    }
    this.#sizeBytes = [...this.#layers.values()].reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
  }

  get layersCount(): number {
    return this.#layers.size;
  }

  /** A blob has its final name: all of it is there. */
  ended(digest: string): void {
    const layer = this.#layers.get(digest);
    if (layer === undefined) return;
    layer.pulledBytes = layer.sizeBytes;
    layer.inode = null;
  }

  /** @param files all partial files, the oldest first */
  grown(files: readonly PartialFile[]): void {
    const open = [...this.#layers.values()].filter(({ pulledBytes, sizeBytes }) => pulledBytes < sizeBytes);
    const present = new Set(files.map(({ inode }) => inode));
    for (const layer of open) if (layer.inode !== null && !present.has(layer.inode)) layer.inode = null;
    for (const { inode, sizeBytes } of files) {
      const layer = open.find((one) => one.inode === inode) ?? open.find((one) => one.inode === null);
      if (layer === undefined) return;
      layer.inode = inode;
      // Only the final name says that a layer is complete.
      layer.pulledBytes = Math.max(layer.pulledBytes, Math.min(sizeBytes, layer.sizeBytes - 1));
    }
  }

  complete(): void {
    for (const layer of this.#layers.values()) layer.pulledBytes = layer.sizeBytes;
  }

  /** The progress since the last call; null when there is none. */
  changes(): CopyProgress | null {
    const layers: LayerProgress[] = [];
    let pulledBytes = 0;
    for (const layer of this.#layers.values()) {
      if (layer.pulledBytes > layer.reportedBytes && layers.length < LAYERS_REPORTED_MAX) {
        layer.reportedBytes = layer.pulledBytes;
        layers.push({ digest: layer.digest, sizeBytes: layer.sizeBytes, pulledBytes: layer.pulledBytes });
      }
      pulledBytes += layer.reportedBytes;
    }
    return layers.length === 0 ? null : { sizeBytes: this.#sizeBytes, pulledBytes, layers };
  }
}
