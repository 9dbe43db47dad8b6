import { type FileHandle, open, stat } from "node:fs/promises";
import { copyFileRange, LibcError, seekData, seekHole } from "./libc.ts";

/** Size of one copy, in `bytes`; the event loop runs in between. */
const STEP_BYTES = 8_388_608;
/** Unit of `st_blocks`. */
export const BLOCK_BYTES = 512;

/**
 * Copies a file with its holes, and shares the data where the file system can. `to` must not exist; its mode is 0600. On
 * an error, the caller removes the incomplete copy.
 * @param bytesMax limit of copied data; the rest of the copy is a hole
 * @throws the reason of `signal`
 */
export async function copySparse(
  from: string,
  to: string,
  signal?: AbortSignal,
  bytesMax = Number.POSITIVE_INFINITY,
): Promise<void> {
  await using source = await open(from, "r");
  await using target = await open(to, "wx", 0o600);
  const { size } = await source.stat();
  await target.truncate(size);
  let offset = 0;
  for (let leftBytes = bytesMax; leftBytes > 0; ) {
    const start = seekData(source.fd, offset);
    if (start === null || start >= size) return;
    const end = Math.min(seekHole(source.fd, start), size, start + leftBytes);
    await copyRange(source, target, { start, end, signal });
    leftBytes -= end - start;
    offset = end;
  }
}

interface Range {
  readonly start: number;
  readonly end: number;
  readonly signal: AbortSignal | undefined;
}

async function copyRange(source: FileHandle, target: FileHandle, { start, end, signal }: Range): Promise<void> {
  let offset = start;
  while (offset < end) {
    signal?.throwIfAborted();
    const copied = await copyStep(source, target, offset, Math.min(STEP_BYTES, end - offset));
    if (copied === 0) throw new Error("the file became shorter while it was copied");
    offset += copied;
    if (offset < end) await new Promise(setImmediate);
  }
}

async function copyStep(source: FileHandle, target: FileHandle, offset: number, length: number): Promise<number> {
  try {
    return copyFileRange({ from: source.fd, fromOffset: offset, to: target.fd, toOffset: offset, length });
  } catch (error) {
    // EXDEV, EOPNOTSUPP, EINVAL: the file systems do not support copying in the kernel.
    if (!(error instanceof LibcError && ["EXDEV", "EOPNOTSUPP", "ENOTSUP", "EINVAL"].includes(error.code))) throw error;
  }
  const { buffer, bytesRead } = await source.read(Buffer.allocUnsafe(length), 0, length, offset);
  let written = 0;
  while (written < bytesRead) {
    written += (await target.write(buffer, written, bytesRead - written, offset + written)).bytesWritten;
  }
  return bytesRead;
}

/** Space that a file takes on the disk, in `bytes`; less than its size when it has holes. */
export async function allocatedBytes(path: string): Promise<number> {
  return (await stat(path)).blocks * BLOCK_BYTES;
}
