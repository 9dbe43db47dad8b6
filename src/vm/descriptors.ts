import { ftruncateSync } from "node:fs";
import {
  addSeals,
  F_SEAL_GROW,
  F_SEAL_SEAL,
  F_SEAL_SHRINK,
  F_SEAL_WRITE,
  getSeals,
  LibcError,
  MFD_ALLOW_SEALING,
  MFD_CLOEXEC,
  memfdCreate,
} from "../system/libc.ts";

/** Every seal: the contents and the size stay, and so does the sealing. */
export const SEALS_ALL = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
/** A VMM that has just exited may have its memory mapped for a moment longer. */
const SEAL_ATTEMPTS_MAX = 50;
const SEAL_PAUSE_MS = 2;

/** Anonymous memory of `sizeBytes` as a descriptor, which the caller closes. @throws LibcError */
export function createMemfd(name: string, sizeBytes: number): number {
  const fd = memfdCreate(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ftruncateSync(fd, sizeBytes);
  return fd;
}

/**
 * Makes the content and size of a memfd final, for whoever holds or opens it.
 * @throws LibcError when somebody keeps it mapped for writing
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

/** Seals of a memfd, as a set of bits. */
export function sealsOf(fd: number): number {
  return getSeals(fd);
}
