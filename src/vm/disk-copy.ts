import { constants } from "node:fs";
import { chmod, chown, copyFile, link, open, rename, rm, stat, truncate } from "node:fs/promises";
import { setTimeout } from "node:timers/promises";
import { hasWriters, LibcError } from "../system/libc.ts";
import { allocatedBytes, copySparse } from "../system/sparse.ts";
import { VmmError } from "./machine-end.ts";
import type { DiskCopy, DiskCopyOptions } from "./vmm.ts";

/** Copied to learn how fast this host copies, in `bytes`. */
const SAMPLE_BYTES_MAX = 67_108_864;
/** A descriptor that was closed elsewhere may be counted for a moment. */
const WRITERS_LOOKS_COUNT = 20;
const WRITERS_LOOK_MS = 10;
/** What copyFile fails with where blocks of two files cannot be shared. */
const NO_SHARING: readonly (string | undefined)[] = ["ENOTSUP", "EOPNOTSUPP", "EXDEV", "EINVAL", "ENOTTY", "ENOSYS"];

/** A disk has more to copy than the writers of its guest may be made to wait for. */
export class DiskCopyLateError extends VmmError {
  override readonly name = "DiskCopyLateError";
  /** that were to be copied */
  readonly bytes: number;
  /** that it would take, in `milliseconds` */
  readonly neededMs: number;
  readonly allowedMs: number;

  constructor({ bytes, neededMs, allowedMs }: { bytes: number; neededMs: number; allowedMs: number }) {
    super(`copying ${bytes} bytes would take about ${neededMs} ms, and ${allowedMs} ms are allowed`);
    this.bytes = bytes;
    this.neededMs = neededMs;
    this.allowedMs = allowedMs;
  }
}

/**
 * Copies the file of a disk by the host's own means, for monitors that cannot: it shares its blocks where the file system
 * can do that, which takes no time; otherwise the data is copied in `finish`, when nothing changes it any more.
 * @param from file of the disk, written through the host's page cache
 */
export async function openHostCopy(from: string, options: Omit<DiskCopyOptions, "serial">): Promise<DiskCopy> {
  const { path, pauseMsMax, signal } = options;
  signal.throwIfAborted();
  // Shared once before the pause, most of what is still to be written to the host's disk is written already.
  const isShared = await shareBlocks(from, path);
  if (!isShared) await requireTime(from, options);
  signal.throwIfAborted();
  const copy = async () => {
    const late = AbortSignal.timeout(pauseMsMax);
    try {
      await copySparse(from, path, AbortSignal.any([late, signal]));
    } catch (error) {
      if (!late.aborted || signal.aborted) throw error;
      const bytes = await allocatedBytes(from);
      const share = Math.max(1, await allocatedBytes(path)) / Math.max(1, bytes);
      throw new DiskCopyLateError({ bytes, neededMs: Math.ceil(pauseMsMax / share), allowedMs: pauseMsMax });
    }
  };
  return {
    finish: async () => {
      if (!isShared) await copy();
      else if (!(await shareBlocks(from, path))) throw new VmmError("the file system shares blocks no more");
    },
    // The file was made here, and nobody else was ever given it.
    seal: () => sealFile(path),
    [Symbol.asyncDispose]: async () => undefined,
  };
}

/** False where the file system cannot do that. */
async function shareBlocks(from: string, to: string): Promise<boolean> {
  try {
    await copyFile(from, to, constants.COPYFILE_FICLONE_FORCE);
    return true;
  } catch (error) {
    if (!NO_SHARING.includes((error as NodeJS.ErrnoException).code)) throw error;
    await rm(to, { force: true });
    return false;
  }
}

/** Copies a sample, and throws when all of the file takes too long at that rate. @throws DiskCopyLateError */
async function requireTime(from: string, { path, pauseMsMax, signal }: Omit<DiskCopyOptions, "serial">): Promise<void> {
  const bytes = await allocatedBytes(from);
  const startedAt = performance.now();
  await copySparse(from, path, signal, SAMPLE_BYTES_MAX);
  const sampleMs = performance.now() - startedAt;
  const sampleBytes = await allocatedBytes(path);
  await rm(path);
  const neededMs = Math.ceil((sampleMs * bytes) / Math.max(1, sampleBytes));
  if (sampleBytes < bytes && neededMs > pauseMsMax) {
    throw new DiskCopyLateError({ bytes, neededMs, allowedMs: pauseMsMax });
  }
}

/** Makes a file that a monitor was given one that only this process can change. */
export async function takeFile(path: string): Promise<void> {
  await sealFile(path);
  for (let look = 0; look < WRITERS_LOOKS_COUNT; look++) {
    if (!(await isWritten(path))) return;
    await setTimeout(WRITERS_LOOK_MS);
  }
  // A monitor that was taken over by its guest may keep what it was to close: that one gets a file of its own.
  const own = `${path}.own`;
  await using _removed = { [Symbol.asyncDispose]: () => rm(own, { force: true }) };
  await copySparse(path, own);
  await rename(own, path);
}

async function isWritten(path: string): Promise<boolean> {
  await using file = await open(path, "r");
  try {
    return hasWriters(file.fd);
  } catch (error) {
    // A file system without leases cannot tell.
    if (!(error instanceof LibcError)) throw error;
    return true;
  }
}

async function sealFile(path: string): Promise<void> {
  await chown(path, process.getuid?.() ?? 0, process.getgid?.() ?? 0);
  await chmod(path, 0o600);
}

/**
 * Makes an empty file for a monitor to write: at `path`, where it stays when the machine is gone, and under a name in the
 * machine's directory.
 */
export async function placeCopy(
  { uid }: { readonly uid: number },
  { source, path, name }: { readonly source: string; readonly path: string; readonly name: string },
): Promise<void> {
  await using file = await open(path, "wx", 0o600);
  await truncate(path, (await stat(source)).size);
  await file.chown(uid, uid);
  await link(path, name);
}
