import { closeSync, fstatSync, openSync, statSync } from "node:fs";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { tryLock } from "../system/libc.ts";
import type { ScratchDirectory } from "../system/scratch.ts";
import type { DataLayout } from "./layout.ts";

/** Work in a private directory of the data directory by a process that is not the daemon. */
export type StagingPurpose = "backup" | "restore";

const STAGING_NAME = /^(?:backup|restore)-[A-Za-z0-9]{6}$/;

/**
 * Makes a private directory in the data directory; disposal removes it. It is locked while this process lives, so that
 * {@link removeAbandonedStaging} recognises the directories of killed processes.
 */
export async function openStaging(layout: DataLayout, purpose: StagingPurpose): Promise<ScratchDirectory> {
  for (;;) {
    const path = await mkdtemp(join(layout.root, `${purpose}-`));
    const lock = lockDirectory(path);
    if (lock === null) continue;
    return {
      path,
      [Symbol.asyncDispose]: async () => {
        using _lock = lock;
        await rm(path, { recursive: true, force: true });
      },
    };
  }
}

/** Removes the staging directories of dead processes, with the hard links and keys in them. Returns their names. */
export async function removeAbandonedStaging(layout: DataLayout): Promise<string[]> {
  const removed: string[] = [];
  for (const name of await readdir(layout.root)) {
    if (!STAGING_NAME.test(name)) continue;
    const path = join(layout.root, name);
    using lock = lockDirectory(path);
    if (lock === null) continue;
    await rm(path, { recursive: true, force: true });
    removed.push(name);
  }
  return removed;
}

/** Null when another process has the lock, or has removed the directory. */
function lockDirectory(path: string): Disposable | null {
  let fd: number;
  try {
    fd = openSync(path, "r");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  }
  const isStillThere = () => statSync(path, { throwIfNoEntry: false })?.ino === fstatSync(fd).ino;
  if (tryLock(fd) && isStillThere()) return { [Symbol.dispose]: () => closeSync(fd) };
  closeSync(fd);
  return null;
}
