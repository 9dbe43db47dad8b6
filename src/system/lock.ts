import { closeSync, openSync } from "node:fs";
import { tryLock } from "./libc.ts";

const RETRY_MS = 50;
/** A process that was killed is gone in far less, with all that it was about to start. */
const HANDOVER_MS_MAX = 2000;

/**
 * Holds `path` for this process until it is disposed or dies. The file stays: removing it would let two
 * processes lock two files of one name.
 * @returns null when another process holds it
 */
export function lockFile(path: string): Disposable | null {
  const fd = openSync(path, "a", 0o600);
  if (!tryLock(fd)) {
    closeSync(fd);
    return null;
  }
  return { [Symbol.dispose]: () => closeSync(fd) };
}

/**
 * The same, waiting for up to `limitMs`: what a process was starting when it was killed has its files, too, for the
 * moment until the program takes over.
 * @returns null when another process holds it all the time
 */
export async function awaitLock(path: string, limitMs = HANDOVER_MS_MAX): Promise<Disposable | null> {
  const deadline = performance.now() + limitMs;
  for (let lock = lockFile(path); ; lock = lockFile(path)) {
    if (lock !== null || performance.now() >= deadline) return lock;
    await Bun.sleep(RETRY_MS);
  }
}
