import { readdir } from "node:fs/promises";
import { join } from "node:path";

const ROOT = "/sys/fs/cgroup";

/** Paths of the host's control groups that match; other tests and appliances create and remove groups at any time. */
export async function controlGroups(matches: (path: string) => boolean, below = ROOT): Promise<string[]> {
  const entries = await readdir(below, { withFileTypes: true }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT" || error.code === "ENODEV") return [];
    throw error;
  });
  const paths = entries.filter((entry) => entry.isDirectory()).map(({ name }) => join(below, name));
  const inner = await Promise.all(paths.map((path) => controlGroups(matches, path)));
  return [...paths.filter(matches), ...inner.flat()];
}
