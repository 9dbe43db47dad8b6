import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { basename, dirname } from "node:path";

/**
 * The file operations that cgroups need, so that tests can simulate other kernels. They are synchronous because the
 * files are kernel memory, and a call takes microseconds.
 */
export interface CgroupFiles {
  /** The text of a file; null when it or its cgroup does not exist. */
  read(path: string): string | null;
  /** Returns false when the file does not exist. @throws Error of the kernel otherwise */
  write(path: string, text: string): boolean;
  /** Creates a cgroup, unless it exists. */
  mkdir(path: string): void;
  /** Removes a cgroup. Returns false while the kernel calls it busy, true when it no longer exists. */
  rmdir(path: string): boolean;
  /** Names of the cgroups in a cgroup; empty when it does not exist. */
  children(path: string): string[];
}

function codeOf(error: unknown): string | undefined {
  return error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
}

/** ENODEV comes from an open file of a cgroup that was removed. */
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
 * The same files, but remembers missing ones: a file that one cgroup lacks is not tried in its siblings, which have the
 * same version and controllers. Limits are written for both versions, so about half of the files are missing.
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
      // Every cgroup has this file. Without it, the cgroup itself was removed.
      if (files.read(`${group}/cgroup.procs`) !== null) missing.add(key);
      return false;
    },
    mkdir: (path) => files.mkdir(path),
    rmdir: (path) => files.rmdir(path),
    children: (path) => files.children(path),
  };
}
