import { chmod, mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { run } from "../system/exec.ts";
import { scratchDirectory } from "../system/scratch.ts";
import { copySparse } from "../system/sparse.ts";

const BLOCK_BYTES = 4096;
const MKFS_MS = 60_000;

/**
 * Makes an empty writable disk at `path`, sparse, with the directories `upper` and `work` that an overlay needs. It has
 * no journal: a disk whose machine was killed is thrown away, and a frozen one needs no replay.
 * @param diskBytes virtual size; rounded down to whole blocks
 * @throws CommandError when it is too small (about 1 MiB) or the disk is full
 */
export async function buildScratchTemplate(path: string, diskBytes: number): Promise<void> {
  await using directory = await scratchDirectory(dirname(path), "mkfs-");
  for (const name of ["upper", "work"]) {
    await mkdir(join(directory.path, name));
    await chmod(join(directory.path, name), 0o755);
  }
  await run({ argv: scratchArgv({ path, diskBytes, content: directory.path }), timeoutMs: MKFS_MS });
}

/**
 * The metadata is packed at the front and written once, so that the file has few bytes to copy.
 * @param options.content directory that is copied into the disk
 */
export function scratchArgv(options: { path: string; diskBytes: number; content: string }): string[] {
  const extended = [
    "lazy_itable_init=0",
    "assume_storage_prezeroed=1",
    "packed_meta_blocks=1",
    "num_backup_sb=0",
    "nodiscard",
    "root_owner=0:0",
  ];
  return [
    ...["mke2fs", "-q", "-F", "-t", "ext4", "-b", String(BLOCK_BYTES), "-m", "0", "-G", "128"],
    ...["-O", "^has_journal,^resize_inode,sparse_super2", "-E", extended.join(",")],
    ...["-d", options.content, options.path, String(Math.floor(options.diskBytes / BLOCK_BYTES))],
  ];
}

/** Gives a new instance its own copy of a template; starts no program. */
export async function stampScratch(template: string, to: string): Promise<void> {
  await copySparse(template, to);
}
