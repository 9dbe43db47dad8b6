import { ftruncateSync } from "node:fs";
import {
  addSeals,
  F_SEAL_GROW,
  F_SEAL_SEAL,
  F_SEAL_SHRINK,
  F_SEAL_WRITE,
  LibcError,
  MFD_ALLOW_SEALING,
  MFD_CLOEXEC,
  memfdCreate,
} from "../system/libc.ts";

/** All seals: neither the contents, nor the size, nor the seals can change. */
export const SEALS_ALL = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
/** The kernel may unmap the memory of a VMM a moment after its exit. */
const SEAL_ATTEMPTS_MAX = 50;
const SEAL_PAUSE_MS = 2;

/** Creates anonymous memory of `sizeBytes`. The caller closes the descriptor. @throws LibcError */
export function createMemfd(name: string, sizeBytes: number): number {
  const fd = memfdCreate(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ftruncateSync(fd, sizeBytes);
  return fd;
}

/**
 * Makes the contents and the size of a memfd final for every process that has it open or opens it.
 * @throws LibcError when a process keeps it mapped for writing
 */
export async function sealMemfd(fd: number): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      addSeals(fd, SEALS_ALL);
      return;
    } catch (error) {
      const isMapped = error instanceof LibcError && error.code === "EBUSY";
      if (!isMapped || attempt === SEAL_ATTEMPTS_MAX) throw error;
    }
    await Bun.sleep(SEAL_PAUSE_MS);
  }
}
