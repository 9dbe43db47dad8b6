import { constants, renameSync, rmSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { geteuid } from "node:process";
import { RECORD_BYTES_MAX } from "./instance-record.ts";

const OWNER_ONLY_MODE = 0o600;
const PERMISSIONS = 0o777;
/** A link is not followed, and nothing waits for the other end of a pipe. */
const OPEN_FLAGS = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

/**
 * Replaces the record of a machine, which only this user can read. It is not synced: a power failure ends the machine, too.
 * @throws Error of the file system: then the one before stays
 */
export function writeRecordFile(path: string, text: string): void {
  const next = `${path}.new`;
  // A failed write has left it, and nothing is written into an existing file.
  rmSync(next, { force: true });
  writeFileSync(next, text, { mode: OWNER_ONLY_MODE, flag: "wx" });
  renameSync(next, path);
}

/**
 * Reads the record of a machine; null: there is none. A record says which processes are trusted with what, so the text is empty
 * unless it is a regular file that only this user can have written and read.
 */
export async function readRecordFile(path: string): Promise<string | null> {
  try {
    await using file = await open(path, OPEN_FLAGS);
    const state = await file.stat();
    const isPrivate = state.uid === geteuid?.() && (state.mode & PERMISSIONS) === OWNER_ONLY_MODE;
    if (!state.isFile() || !isPrivate || state.nlink !== 1 || state.size > RECORD_BYTES_MAX) return "";
    return await file.readFile("utf8");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    // ENOTDIR: a file is in the place of the machine's directory.
    return code === "ENOENT" || code === "ENOTDIR" ? null : "";
  }
}
