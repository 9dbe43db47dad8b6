import { constants } from "node:fs";
import { chmod, copyFile, link } from "node:fs/promises";
import { join } from "node:path";

/** The directory in which the VMM creates its sockets. @param directory private directory of the machine */
export function runDirectory(directory: string): string {
  return join(directory, "run");
}

/** Puts a file of the daemon into a machine's directory, read-only for its VMM. */
export async function placeFile(source: string, target: string): Promise<void> {
  try {
    await link(source, target);
  } catch (error) {
    // EXDEV: the file lies on another file system.
    if ((error as NodeJS.ErrnoException).code !== "EXDEV") throw error;
    await copyFile(source, target, constants.COPYFILE_EXCL);
    await chmod(target, 0o444);
  }
}
