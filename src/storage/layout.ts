import { statSync } from "node:fs";
import { mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { awaitLock } from "../system/lock.ts";
import { spreadDirectories } from "../system/scratch.ts";

/** Paths of everything in the data directory. */
export interface DataLayout {
  readonly root: string;
  /** disks and indexes of layers, by layer id */
  readonly layers: string;
  /** uploaded contents, by SHA-256 */
  readonly blobs: string;
  /** event logs, by the id of the operation or sandbox */
  readonly events: string;
  /** standard input of live operations, by operation id */
  readonly requests: string;
  /** memory of paused sandboxes, each in a directory of its own */
  readonly memoryImages: string;
  /** private directories of running machines */
  readonly vms: string;
  /** unfinished files; everything in it at the start of the daemon is garbage */
  readonly tmp: string;
  /** formatted, empty scratch disks, by size */
  readonly scratch: string;
  /** root directories of virtual machine monitors */
  readonly runtime: string;
  /** keys that sign tokens and receipts */
  readonly keys: string;
  readonly database: string;
  /** file that the daemon which uses the directory has locked */
  readonly lock: string;
  /** socket on which the daemon accepts the operator's commands */
  readonly control: string;
  /** Creates missing directories, with access for the owner only. */
  ensure(): Promise<void>;
}

export function dataLayout(dataDirectory: string): DataLayout {
  const directories = {
    root: dataDirectory,
    layers: join(dataDirectory, "layers"),
    blobs: join(dataDirectory, "blobs"),
    events: join(dataDirectory, "events"),
    requests: join(dataDirectory, "requests"),
    memoryImages: join(dataDirectory, "memory-images"),
    vms: join(dataDirectory, "vms"),
    tmp: join(dataDirectory, "tmp"),
    scratch: join(dataDirectory, "scratch"),
    runtime: join(dataDirectory, "runtime"),
    keys: join(dataDirectory, "keys"),
  };
  return {
    ...directories,
    database: join(dataDirectory, "coppice.db"),
    lock: join(dataDirectory, "lock"),
    control: join(dataDirectory, "control.sock"),
    async ensure() {
      for (const directory of Object.values(directories)) await mkdir(directory, { recursive: true, mode: 0o700 });
      await spreadDirectories(directories.tmp);
    },
  };
}

/**
 * Locks the data directory for this process, like a daemon, until disposal.
 * @returns null when another process has the lock
 */
export function lockData({ lock }: DataLayout): Promise<Disposable | null> {
  return awaitLock(lock);
}

/** The data directory cannot be read; the message says what to do. */
export class DataAccessError extends Error {
  override readonly name = "DataAccessError";
}

/** Whether the data directory contains an appliance's data. @throws DataAccessError when this user may not read it */
export function hasData({ root, database }: DataLayout): boolean {
  try {
    statSync(database);
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR") return false;
    if (code !== "EACCES" && code !== "EPERM") throw error;
    const advice = "run this as the user that the appliance runs as (root)";
    throw new DataAccessError(`${root} is not accessible: ${advice}`, { cause: error });
  }
}

/** Number of names that are handled in one turn of the event loop. */
const BATCH_COUNT = 500;

/** The names in a directory, in batches. */
export async function* nameBatches(directory: string): AsyncGenerator<string[]> {
  yield* batches(await readdir(directory));
}

/** Splits an array into batches, with a turn of the event loop after each. */
export async function* batches<T>(all: readonly T[], count = BATCH_COUNT): AsyncGenerator<T[]> {
  for (let start = 0; start < all.length; start += count) {
    yield all.slice(start, start + count);
    await setImmediate();
  }
}
