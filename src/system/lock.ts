import { closeSync, openSync } from "node:fs";
import { tryLock } from "./libc.ts";

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
