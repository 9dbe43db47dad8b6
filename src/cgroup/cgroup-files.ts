import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { basename, dirname } from "node:path";

/**
 * The few file operations that control groups need, so that a test can stand in for a kernel that is not
 * this one. They are synchronous: the files are the kernel's memory, and a call takes microseconds.
 */
export interface CgroupFiles {
  /** The text of a file, or null when it or its group does not exist. */
  read(path: string): string | null;
  /** False when the file does not exist. @throws Error of the kernel otherwise */
  write(path: string, text: string): boolean;
  /** Makes a group; one that exists is no error. */
  mkdir(path: string): void;
  /** False while the kernel still calls the group busy; a group that does not exist is no error. */
  rmdir(path: string): boolean;
  /** Names of the groups in a group; empty when it does not exist. */
  children(path: string): string[];
}

function codeOf(error: unknown): string | undefined {
  return error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
}

/** ENODEV is what a file of a group that was removed under us answers. */
function isGone(error: unknown): boolean {
  return codeOf(error) === "ENOENT" || codeOf(error) === "ENODEV";
}

export const kernelFiles: CgroupFiles = {
  read(path) {
    try {
      return readFileSync(path, "utf8");
    } catch (error) {
      if (isGone(error)) return null;
      throw error;
    }
  },
  write(path, text) {
    try {
      writeFileSync(path, text, { flag: "r+" });
      return true;
    } catch (error) {
      if (isGone(error)) return false;
      throw error;
    }
  },
  mkdir(path) {
    mkdirSync(path, { recursive: true });
  },
  rmdir(path) {
    try {
      rmdirSync(path);
      return true;
    } catch (error) {
      if (isGone(error)) return true;
      if (codeOf(error) === "EBUSY" || codeOf(error) === "ENOTEMPTY") return false;
      throw error;
    }
  },
  children(path) {
    try {
      return readdirSync(path, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? [entry.name] : []));
    } catch (error) {
      if (isGone(error)) return [];
      throw error;
    }
  },
};

/**
 * The same files, but those that a group does not have are not tried again in its siblings, which are of the same
 * version and have the same controllers. Most of what is written for both versions to all trees is missing.
 */
export function skippingMissing(files: CgroupFiles): CgroupFiles {
  const missing = new Set<string>();
  return {
    read: (path) => files.read(path),
    write(path, text) {
      const group = dirname(path);
      const key = `${dirname(group)}/*/${basename(path)}`;
      if (missing.has(key)) return false;
      if (files.write(path, text)) return true;
      // Every group has this one: without it the group itself is gone.
      if (files.read(`${group}/cgroup.procs`) !== null) missing.add(key);
      return false;
    },
    mkdir: (path) => files.mkdir(path),
    rmdir: (path) => files.rmdir(path),
    children: (path) => files.children(path),
  };
}
