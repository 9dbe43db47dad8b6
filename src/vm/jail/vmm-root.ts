import { createHash } from "node:crypto";
import { chmod, copyFile, mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { run } from "../../system/exec.ts";
import { scratchDirectory } from "../../system/scratch.ts";

/** What a VMM needs of the host's files. */
export interface VmmFiles {
  /** absolute path of the VMM */
  readonly program: string;
  /** objects that it loads by itself; those that this host does not have are left out */
  readonly modules: readonly string[];
  /** firmware and the like; left out likewise */
  readonly data: readonly string[];
}

const DYNAMIC_LOADER = "/lib64/ld-linux-x86-64.so.2";
const LOADER_TIMEOUT_MS = 10_000;
/** Mount points of the launcher. */
const MOUNT_POINTS = ["vm", "proc", "dev"] as const;
/** Part of the name, so that a change of what is in a root makes a new one. */
const FORMAT = "1";

/**
 * Makes the root directory that a jailed VMM sees: the program, its shared libraries, modules and firmware, at their
 * paths on the host, and nothing else. It is made anew when any of them changed, and older ones are removed but `kept`.
 * @throws CommandError when the dynamic loader refuses the program
 */
export async function prepareVmmRoot(
  files: VmmFiles,
  directory: string,
  kept: ReadonlySet<string> = new Set(),
): Promise<string> {
  const sources = await closure(files);
  // Each program has its own, and keeps those of the others.
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

/** The files and every shared object that the loader would give them, without doubles. */
async function closure(files: VmmFiles): Promise<string[]> {
  const present = async (paths: readonly string[]): Promise<string[]> => {
    const found = await Promise.all(paths.map(exists));
    return paths.filter((_, index) => found[index]);
  };
  const objects = [files.program, ...(await present(files.modules))];
  const sources = new Set([...objects, ...(await present(files.data))]);
  for (const object of objects) {
    if (object === files.program && (await isStaticProgram(object))) continue;
    sources.add(DYNAMIC_LOADER);
    const { stdout } = await run({ argv: [DYNAMIC_LOADER, "--list", object], timeoutMs: LOADER_TIMEOUT_MS });
    for (const library of parseLoaderList(Buffer.from(stdout).toString("utf8"))) sources.add(library);
  }
  return [...sources].sort();
}

const PROGRAM_HEADERS_BYTES_MAX = 8192;
const PT_INTERP = 3;

/** Whether an ELF program names no loader: the host's one may crash on such a file. */
async function isStaticProgram(path: string): Promise<boolean> {
  const head = Buffer.from(await Bun.file(path).slice(0, PROGRAM_HEADERS_BYTES_MAX).arrayBuffer());
  const [table, size, count] = [Number(head.readBigUInt64LE(32)), head.readUInt16LE(54), head.readUInt16LE(56)];
  return !Array.from({ length: count }, (_, index) => head.readUInt32LE(table + index * size)).includes(PT_INTERP);
}

/** Absolute paths in the output of `ld.so --list`. */
export function parseLoaderList(text: string): string[] {
  return text.split("\n").flatMap((line) => /(?:=> |^\s+)(\/\S+) \(0x[0-9a-f]+\)$/.exec(line)?.[1] ?? []);
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
  // The umask may have cut these, and the VMM's user is nobody's friend.
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
    // ENOENT is the question's answer.
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw error;
  }
}
