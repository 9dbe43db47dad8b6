import { createHash } from "node:crypto";
import { chmod, copyFile, mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { scratchDirectory } from "../../system/scratch.ts";
import { sharedObjects } from "../../system/shared-objects.ts";

/** Host files that a VMM needs. */
export interface VmmFiles {
  /** absolute path of the VMM */
  readonly program: string;
  /** shared objects that it loads at run time; those that this host does not have are skipped */
  readonly modules: readonly string[];
  /** firmware and other data; missing files are skipped, too */
  readonly data: readonly string[];
}

/** Directories on which the launcher mounts. */
const MOUNT_POINTS = ["vm", "proc", "dev"] as const;
/** Part of the directory's name. Change it when the contents of a root change for the same files. */
const FORMAT = "1";

/**
 * Makes the root directory of a jailed VMM. It contains the program, its shared libraries, modules and firmware at their
 * host paths, and nothing else. A changed file makes a new root; older ones are removed, except those in `kept`.
 * @throws CommandError when the dynamic loader refuses the program
 */
export async function prepareVmmRoot(
  files: VmmFiles,
  directory: string,
  kept: { has(path: string): boolean } = new Set(),
): Promise<string> {
  const sources = await closure(files);
  // Each VMM has a prefix of its own, so that it does not remove the roots of another.
  const prefix = `${basename(files.program)}-`;
  const name = `${prefix}${await fingerprint(sources)}`;
  const final = join(directory, name);
  await mkdir(directory, { recursive: true, mode: 0o711 });
  if (!(await exists(final))) {
    await using scratch = await scratchDirectory(directory, `${prefix}new-`);
    await build(sources, join(scratch.path, "root"));
    await rename(join(scratch.path, "root"), final);
  }
  for (const entry of await readdir(directory)) {
    const path = join(directory, entry);
    if (entry.startsWith(prefix) && path !== final && !kept.has(path)) await rm(path, { recursive: true, force: true });
  }
  return final;
}

/** The files and all shared objects that the loader resolves for them, without duplicates. */
async function closure(files: VmmFiles): Promise<string[]> {
  const present = async (paths: readonly string[]): Promise<string[]> => {
    const isPresent = await Promise.all(paths.map(exists));
    return paths.filter((_, index) => isPresent[index]);
  };
  const objects = [files.program, ...(await present(files.modules))];
  const sources = new Set([...objects, ...(await present(files.data))]);
  for (const object of objects) {
    if (object === files.program && (await isStaticProgram(object))) continue;
    for (const library of await sharedObjects(object)) sources.add(library);
  }
  return [...sources].sort();
}

const PROGRAM_HEADERS_BYTES_MAX = 8192;
const PT_INTERP = 3;

/** True for an ELF program without an interpreter. The host's loader may crash on such a file. */
async function isStaticProgram(path: string): Promise<boolean> {
  const head = Buffer.from(await Bun.file(path).slice(0, PROGRAM_HEADERS_BYTES_MAX).arrayBuffer());
  const [table, size, count] = [Number(head.readBigUInt64LE(32)), head.readUInt16LE(54), head.readUInt16LE(56)];
  return !Array.from({ length: count }, (_, index) => head.readUInt32LE(table + index * size)).includes(PT_INTERP);
}

async function fingerprint(sources: readonly string[]): Promise<string> {
  const hash = createHash("sha256").update(FORMAT);
  for (const source of sources) {
    const { size, mtimeMs } = await stat(source);
    hash.update(`\0${source}\0${size}\0${mtimeMs}`);
  }
  return hash.digest("hex").slice(0, 32);
}

async function build(sources: readonly string[], root: string): Promise<void> {
  for (const point of MOUNT_POINTS) await mkdir(join(root, point), { recursive: true });
  for (const source of sources) {
    const target = join(root, source);
    await mkdir(dirname(target), { recursive: true });
    await copyFile(source, target);
    await chmod(target, 0o555);
  }
  // The umask may have removed bits, and the VMM's user needs those for others.
  for (const entry of await readdir(root, { recursive: true, withFileTypes: true })) {
    if (entry.isDirectory()) await chmod(join(entry.parentPath, entry.name), 0o755);
  }
  await chmod(root, 0o755);
}

async function exists(path: string): Promise<boolean> {
  try {
    await stat(path);
    return true;
  } catch (error) {
    // Only ENOENT means that the file does not exist.
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw error;
  }
}
