import { randomBytes } from "node:crypto";
import { mkdtemp, open, readdir, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { run } from "./exec.ts";
import { addInodeFlags, LibcError } from "./libc.ts";

/** A private directory (0700) that is gone, with all that is in it, after disposal. */
export interface ScratchDirectory extends AsyncDisposable {
  readonly path: string;
}

/** Something that was made, and that disposal removes unless it was kept. */
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

/** The same for trees that strangers made: what they hold is removed by `removeTrees`. */
export async function untrustedDirectory(parent: string, prefix: string): Promise<ScratchDirectory> {
  const path = await mkdtemp(join(parent, prefix));
  return { path, [Symbol.asyncDispose]: () => removeTrees([path]) };
}

const REMOVAL_MS_MAX = 3_600_000;
/** Of one command line, which the kernel bounds. */
const REMOVED_COUNT_MAX = 500;

/**
 * Removes trees of any depth, by a program: the runtime's own removal goes by whole paths, which takes half a minute of a
 * thread for 2000 directories in each other, and ever more for deeper ones. What is not there is no failure.
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
 * Tells ext4 that the directories in this one have nothing to do with each other, so that it spreads them over the disk.
 * Otherwise each comes to lie where the last one has just been removed, and there, on a disk without a journal, the
 * kernel looks at every inode freed within the last minute each time that a file is made. Other file systems need no
 * such hint.
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
 * Makes a finished file visible under its final name, so that a power loss leaves either nothing or all of it there.
 * Both names must be on one file system. An existing `final` is replaced.
 */
export async function publishFile(temporary: string, final: string): Promise<void> {
  await syncPath(temporary);
  await rename(temporary, final);
  await syncPath(dirname(final));
}

const TEMPORARY_NAME = /^\..+\.[0-9a-f]{12}$/;

/** Whether `writeFileAtomic` makes files of such a name; those that it does not rename are garbage. */
export function isTemporaryName(name: string): boolean {
  return TEMPORARY_NAME.test(name);
}

/** Removes what processes that died left of `writeFileAtomic` in a directory; what is younger than `ageMs` may be in use. */
export async function sweepTemporaries(directory: string, ageMs: number): Promise<void> {
  const beforeMs = Date.now() - ageMs;
  for (const name of (await readdir(directory)).filter(isTemporaryName)) {
    const path = join(directory, name);
    // Whoever made it may rename it at any moment.
    const mtimeMs = await stat(path).then((found) => found.mtimeMs, ignoreMissing);
    if (mtimeMs !== null && mtimeMs < beforeMs) await rm(path, { force: true });
  }
}

function ignoreMissing(error: NodeJS.ErrnoException): null {
  if (error.code === "ENOENT") return null;
  throw error;
}

/**
 * Replaces a small file as a whole: readers see the old or the new content, also after a power loss. Pieces are written
 * one behind the other. Default mode 0600.
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
    // The mode of open() is cut by the umask.
    await file.chmod(mode);
  }
  await publishFile(temporary, path);
}

/** Flushes a file or a directory to the disk; the event loop goes on meanwhile. */
export async function syncPath(path: string): Promise<void> {
  await using file = await open(path, "r");
  await file.sync();
}
