import { closeSync, openSync } from "node:fs";
import { tryLock } from "./libc.ts";

const RETRY_MS = 50;
/** Children that a killed process was starting release its files within this time. */
const HANDOVER_MS_MAX = 2000;

/**
 * Locks `path` for this process until disposal or death. The file is never removed: otherwise two processes could lock
 * two files of the same name.
 * @returns null when another process has the lock
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
 * The same, but waits up to `limitMs`: a child that a killed process was starting holds its files until the child's
 * program runs.
 * @returns null when another process has the lock all the time
 */
export async function awaitLock(path: string, limitMs = HANDOVER_MS_MAX): Promise<Disposable | null> {
  const deadline = performance.now() + limitMs;
  for (let lock = lockFile(path); ; lock = lockFile(path)) {
    if (lock !== null || performance.now() >= deadline) return lock;
    await Bun.sleep(RETRY_MS);
  }
}
