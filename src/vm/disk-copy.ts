import { constants } from "node:fs";
import { chmod, chown, copyFile, link, open, rename, rm, stat, truncate } from "node:fs/promises";
import { setTimeout } from "node:timers/promises";
import { hasWriters, LibcError } from "../system/libc.ts";
import { allocatedBytes, copySparse } from "../system/sparse.ts";
import { VmmError } from "./machine-end.ts";
import type { DiskCopy, DiskCopyOptions } from "./vmm.ts";

/** Size of the sample that measures how fast this host copies, in `bytes`. */
const SAMPLE_BYTES_MAX = 67_108_864;
/** The kernel may count a writer for a moment after another process has closed its descriptor. */
const WRITER_CHECKS_COUNT = 20;
const WRITER_CHECK_MS = 10;
/** Error codes of copyFile on file systems that cannot share blocks between two files. */
const CANNOT_SHARE_CODES: readonly (string | undefined)[] = [
  "ENOTSUP",
  "EOPNOTSUPP",
  "EXDEV",
  "EINVAL",
  "ENOTTY",
  "ENOSYS",
];

/** Copying the disk would stop the writes of its guest for longer than allowed. */
export class DiskCopyLateError extends VmmError {
  override readonly name = "DiskCopyLateError";
  /** size of the data to copy */
  readonly bytes: number;
  /** estimated duration of the copy, in `milliseconds` */
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
 * Copies the file of a disk on the host, for monitors that cannot copy one. Where the file system supports it, the copy
 * shares the blocks of the disk, which takes no time. Otherwise `finish` copies the data, while no process changes it.
 * @param from file of the disk, which the monitor must write through the host's page cache
 * @throws DiskCopyLateError when `finish` would take longer than `pauseMsMax`; the reason of `signal`
 */
export async function openHostCopy(from: string, options: Omit<DiskCopyOptions, "serial">): Promise<DiskCopy> {
  const { path, pauseMsMax, signal } = options;
  signal.throwIfAborted();
  // Sharing blocks flushes the file. A first time before the pause leaves less to flush during the pause.
  const isShared = await shareBlocks(from, path);
  if (!isShared) await requireFastCopy(from, options);
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
      else if (!(await shareBlocks(from, path))) throw new VmmError("the file system no longer shares blocks");
    },
    // No other process has ever opened the file.
    seal: () => sealFile(path),
    [Symbol.asyncDispose]: async () => undefined,
  };
}

/** Makes `to` a copy that shares the blocks of `from`. Returns false when the file system cannot share blocks. */
async function shareBlocks(from: string, to: string): Promise<boolean> {
  try {
    await copyFile(from, to, constants.COPYFILE_FICLONE_FORCE);
    return true;
  } catch (error) {
    if (!CANNOT_SHARE_CODES.includes((error as NodeJS.ErrnoException).code)) throw error;
    await rm(to, { force: true });
    return false;
  }
}

/** Estimates the duration of the copy from a sample. @throws DiskCopyLateError when it exceeds `pauseMsMax` */
async function requireFastCopy(
  from: string,
  { path, pauseMsMax, signal }: Omit<DiskCopyOptions, "serial">,
): Promise<void> {
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

/** Ensures that only this process can change a file which a monitor has written. */
export async function takeOverFile(path: string): Promise<void> {
  await sealFile(path);
  for (let check = 0; check < WRITER_CHECKS_COUNT; check++) {
    if (!(await isWritten(path))) return;
    await setTimeout(WRITER_CHECK_MS);
  }
  // A monitor that its guest has compromised may keep its descriptor open. It loses the file: a copy replaces it.
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
    // A file system without leases cannot tell: assume a writer.
    if (!(error instanceof LibcError)) throw error;
    return true;
  }
}

async function sealFile(path: string): Promise<void> {
  await chown(path, process.getuid?.() ?? 0, process.getgid?.() ?? 0);
  await chmod(path, 0o600);
}

/**
 * Creates an empty file of the size of `source` that the monitor can write: at `path`, where it outlives the machine, and
 * under the path `name` in the machine's directory.
 */
export async function createCopyFile(
  { uid }: { readonly uid: number },
  { source, path, name }: { readonly source: string; readonly path: string; readonly name: string },
): Promise<void> {
  await using file = await open(path, "wx", 0o600);
  await truncate(path, (await stat(source)).size);
  await file.chown(uid, uid);
  await link(path, name);
}
