import { statSync } from "node:fs";
import { mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { awaitLock } from "../system/lock.ts";
import { spreadDirectories } from "../system/scratch.ts";

/** Paths of everything that the data directory holds. */
export interface DataLayout {
  readonly root: string;
  /** disks and indexes of layers, by layer id */
  readonly layers: string;
  /** uploaded contents, by SHA-256 */
  readonly blobs: string;
  /** captured outputs, by operation id */
  readonly outputs: string;
  /** standard input of operations that have not ended, by operation id */
  readonly requests: string;
  /** private directories of running machines */
  readonly vms: string;
  /** files that are being made; whatever is there at start is garbage */
  readonly tmp: string;
  /** formatted, empty scratch disks, by size */
  readonly scratch: string;
  /** what virtual machine monitors see as their root */
  readonly runtime: string;
  /** keys that sign tokens */
  readonly keys: string;
  readonly database: string;
  /** held by the daemon that uses the directory */
  readonly lock: string;
  /** socket on which the daemon takes the operator's commands */
  readonly control: string;
  /** Makes the directories that are missing, for the owner only. */
  ensure(): Promise<void>;
}

export function dataLayout(dataDirectory: string): DataLayout {
  const directories = {
    root: dataDirectory,
    layers: join(dataDirectory, "layers"),
    blobs: join(dataDirectory, "blobs"),
    outputs: join(dataDirectory, "outputs"),
    requests: join(dataDirectory, "requests"),
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
 * Takes the data directory for this process alone, until disposal, as a daemon does.
 * @returns null when another process has it
 */
export function lockData({ lock }: DataLayout): Promise<Disposable | null> {
  return awaitLock(lock);
}

/** Raised where the data directory cannot be looked into; the message says what to do. */
export class DataAccessError extends Error {
  override readonly name = "DataAccessError";
}

/** Whether an appliance has its data there. @throws DataAccessError when this user must not know */
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

/** Names that are looked at before others have a turn of the event loop. */
const BATCH_COUNT = 500;

/** The names in a directory, some at a time. */
export async function* nameBatches(directory: string): AsyncGenerator<string[]> {
  yield* batches(await readdir(directory));
}

/** However many there are, others have turns of the event loop in between. */
export async function* batches<T>(all: readonly T[], count = BATCH_COUNT): AsyncGenerator<T[]> {
  for (let start = 0; start < all.length; start += count) {
    yield all.slice(start, start + count);
    await setImmediate();
  }
}
