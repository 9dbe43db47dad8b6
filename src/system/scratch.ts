import { randomBytes } from "node:crypto";
import { mkdtemp, open, readdir, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { run } from "./exec.ts";
import { addInodeFlags, LibcError } from "./libc.ts";

/** A private directory (0700), which disposal removes with its contents. */
export interface ScratchDirectory extends AsyncDisposable {
  readonly path: string;
}

/** Something new, which disposal removes again unless `keep` was called. */
export interface Keepable extends AsyncDisposable {
  keep(): void;
}

export function removedUnlessKept(remove: () => Promise<void>): Keepable {
  let isKept = false;
  return {
    keep: () => {
      isKept = true;
    },
    [Symbol.asyncDispose]: async () => {
      if (!isKept) await remove();
    },
  };
}

/** Makes a directory `<prefix>XXXXXX` in `parent`, which must exist. */
export async function scratchDirectory(parent: string, prefix: string): Promise<ScratchDirectory> {
  const path = await mkdtemp(join(parent, prefix));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}

/** The same for trees from outside, which can be very deep: disposal uses `removeTrees`. */
export async function untrustedDirectory(parent: string, prefix: string): Promise<ScratchDirectory> {
  const path = await mkdtemp(join(parent, prefix));
  return { path, [Symbol.asyncDispose]: () => removeTrees([path]) };
}

const REMOVAL_MS_MAX = 3_600_000;
/** Number of trees in one command line, whose length the kernel limits. */
const REMOVED_COUNT_MAX = 500;

/**
 * Removes trees of any depth with a program. The runtime's own removal uses whole paths: for 2000 nested directories it
 * occupies a thread for half a minute, and much longer for deeper trees. Missing trees are not an error.
 */
export async function removeTrees(paths: readonly string[]): Promise<void> {
  for (let first = 0; first < paths.length; first += REMOVED_COUNT_MAX) {
    const argv = ["rm", "-rf", "--", ...paths.slice(first, first + REMOVED_COUNT_MAX)];
    await run({ argv, timeoutMs: REMOVAL_MS_MAX });
  }
}

/** FS_TOPDIR_FL of linux/fs.h. */
const TOP_DIRECTORY_FLAG = 0x0002_0000;

/**
 * Tells ext4 that the subdirectories of this directory are unrelated, so that it spreads them over the disk. Otherwise it
 * places each new one where the last one was removed; without a journal, the kernel then checks every inode that was freed
 * in the last minute whenever a file is created. Other file systems need no such hint.
 */
export async function spreadDirectories(parent: string): Promise<void> {
  await using directory = await open(parent, "r");
  try {
    addInodeFlags(directory.fd, TOP_DIRECTORY_FLAG);
  } catch (error) {
    if (!(error instanceof LibcError)) throw error;
  }
}

/**
 * Moves a finished file to its final name. A power failure leaves either nothing or the whole file there. Both names must
 * be on one file system. An existing `final` is replaced.
 */
export async function publishFile(temporary: string, final: string): Promise<void> {
  await syncPath(temporary);
  await rename(temporary, final);
  await syncPath(dirname(final));
}

const TEMPORARY_NAME = /^\..+\.[0-9a-f]{12}$/;

/** Whether `writeFileAtomic` uses such names. A file with such a name that stays is garbage. */
export function isTemporaryName(name: string): boolean {
  return TEMPORARY_NAME.test(name);
}

/** Removes temporary files of `writeFileAtomic` that dead processes left. Those younger than `ageMs` may be in use. */
export async function sweepTemporaries(directory: string, ageMs: number): Promise<void> {
  const beforeMs = Date.now() - ageMs;
  for (const name of (await readdir(directory)).filter(isTemporaryName)) {
    const path = join(directory, name);
    // Its process may rename it at any moment.
    const mtimeMs = await stat(path).then((stats) => stats.mtimeMs, ignoreMissing);
    if (mtimeMs !== null && mtimeMs < beforeMs) await rm(path, { force: true });
  }
}

function ignoreMissing(error: NodeJS.ErrnoException): null {
  if (error.code === "ENOENT") return null;
  throw error;
}

/**
 * Replaces a small file atomically: readers see the old or the new content, even after a power failure. Pieces are joined.
 * The default mode is 0600.
 */
export async function writeFileAtomic(
  path: string,
  data: Uint8Array | string | readonly Uint8Array[],
  mode = 0o600,
): Promise<void> {
  const temporary = join(dirname(path), `.${basename(path)}.${randomBytes(6).toString("hex")}`);
  await using undo = new AsyncDisposableStack();
  {
    await using file = await open(temporary, "wx", mode);
    undo.defer(() => rm(temporary, { force: true }));
    const pieces = typeof data === "string" || data instanceof Uint8Array ? [data] : data;
    for (const piece of pieces) await file.writeFile(piece);
    // The umask reduces the mode of open().
    await file.chmod(mode);
  }
  await publishFile(temporary, path);
}

/** Syncs a file or a directory to the disk, without blocking the event loop. */
export async function syncPath(path: string): Promise<void> {
  await using file = await open(path, "r");
  await file.sync();
}
