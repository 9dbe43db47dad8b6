import { chmod, lstat, mkdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { ApiError } from "../domain/errors.ts";
import type { Capability } from "../system/confine.ts";
import type { CommandError } from "../system/exec.ts";
import { diskUsage, diskUsageSum } from "./disk-usage.ts";
import { runTool, type ToolBounds } from "./tool.ts";
import { commonFailure, reasonOf } from "./tool-failure.ts";
import { type TreeUsage, treeUsage } from "./tree-limits.ts";

export interface BaseDiskOptions extends ToolBounds {
  /** directory whose only entry, `upper`, is the root file system */
  readonly staging: string;
  /** path of the disk to make, in a directory of its own */
  readonly path: string;
  /** contents of the staging directory; counted when absent */
  readonly usage?: TreeUsage;
}

/** Mount points of the guest, and directories that every command may expect. */
const DIRECTORIES = { proc: 0o755, sys: 0o755, dev: 0o755, tmp: 0o1777, root: 0o700 } as const;

/**
 * The time in the disk. The default would be the present, so the bytes would differ; mkfs.erofs also replaces every later
 * time by it. mkfs.erofs reads times before 1970 as very late ones, so this is its latest time but one, in `seconds`.
 */
const SOURCE_DATE_EPOCH_SECONDS = 18_446_744_073_709_551_614n;
/** Constant, so that equal trees give equal bytes. A guest can mount many disks with the same UUID. */
const DISK_UUID = "c0bb1ce0-0000-4000-8000-000000000001";

/**
 * Needed to read the files of other users. Without CAP_SYS_ADMIN, mkfs does not see attributes in the name space `trusted`,
 * which is intended: overlayfs keeps its own marks there.
 */
const CAPABILITIES: readonly Capability[] = ["dac_override"];

/** Limit of entries: mkfs.erofs takes more than 4 KiB of memory for each. */
export const EROFS_ENTRIES_MAX = 350_000;
/** Limit of entries in one directory: mke2fs searches the whole directory for each entry that it adds. */
export const EXT4_DIRECTORY_ENTRIES_MAX = 50_000;

/** Limit of a disk's size. An ext4 disk is mostly holes; its content is as large as the tree, which was counted. */
const DISK_BYTES_MAX = 2_199_023_255_552;
const BLOCK_BYTES = 4096;
const DU_BYTES_MAX = 16_777_216;
/** Reserve in the computed size of an ext4 disk; it stays a hole. */
const EXT4_SPARE_BYTES = 67_108_864;
/** Space for the directory entry, extent block and attribute block of one entry, in `bytes`. */
const EXT4_ENTRY_BYTES = 12_288;
const EXT4_SPARE_INODES_COUNT = 256;

/**
 * Makes a disk from a root file system, without mounting anything: EROFS, or ext4 when mkfs.erofs refuses the tree (for
 * example, for a name of 255 bytes). Both store a file's bytes where the guest's kernel can locate them (FIEMAP).
 * @throws ApiError `insufficient_storage`, `payload_too_large`, `validation_error` when both tools refuse, `unavailable`
 *   at the time limit
 */
export async function buildBaseDisk(options: BaseDiskOptions): Promise<{ format: "erofs" | "ext4" }> {
  await addDirectories(join(options.staging, "upper"));
  const usage = options.usage ?? (await treeUsage(options.staging, options));
  const refusal = await erofs(options, usage);
  if (refusal === null) return { format: "erofs" };
  await rm(options.path, { force: true });
  await refuseHugeDirectories(options);
  const { sizeBytes, inodes } = await ext4Size(options, usage);
  const second = await tryTool(ext4Argv({ ...options, sizeBytes, inodes }), options, {});
  if (second === null) return { format: "ext4" };
  await rm(options.path, { force: true });
  throw new ApiError("validation_error", "no disk can be made of the image's files", {
    erofs: refusal,
    ext4: reasonOf(second.stderrTail),
  });
}

/** Makes an EROFS disk. Returns null, or the reason why mkfs.erofs refused. */
async function erofs(options: BaseDiskOptions, { entries }: TreeUsage): Promise<string | null> {
  if (entries > EROFS_ENTRIES_MAX) return `more than ${EROFS_ENTRIES_MAX} files`;
  const environment = { SOURCE_DATE_EPOCH: String(SOURCE_DATE_EPOCH_SECONDS) };
  const refusal = await tryTool(erofsArgv(options), options, environment);
  return refusal === null ? null : reasonOf(refusal.stderrTail);
}

/** @throws ApiError `validation_error` when making an ext4 disk would take too long */
async function refuseHugeDirectories(options: BaseDiskOptions): Promise<void> {
  const flags = ["--inodes", "--count-links", "--separate-dirs", `--threshold=${EXT4_DIRECTORY_ENTRIES_MAX}`];
  const directories = await diskUsage(flags, { ...options, directory: options.staging, stdoutBytesMax: DU_BYTES_MAX });
  if (directories === "") return;
  const most = `the image has a directory of more than ${EXT4_DIRECTORY_ENTRIES_MAX} entries`;
  const together = `together with names of 255 bytes or more than ${EROFS_ENTRIES_MAX} files`;
  throw new ApiError("validation_error", `${most}, ${together}`);
}

/** The arguments of mkfs.erofs. Inline data is disabled, because it cannot be located from outside the guest. */
export function erofsArgv({ staging, path }: Pick<BaseDiskOptions, "staging" | "path">): string[] {
  return ["mkfs.erofs", "-Enoinline_data", "-U", DISK_UUID, "--quiet", path, staging];
}

export function ext4Argv(options: {
  readonly staging: string;
  readonly path: string;
  readonly sizeBytes: number;
  readonly inodes: number;
}): string[] {
  return [
    ...["mke2fs", "-q", "-F", "-t", "ext4", "-b", String(BLOCK_BYTES), "-I", "256", "-m", "0"],
    ...["-N", String(options.inodes), "-U", DISK_UUID, "-O", "^has_journal,^resize_inode,sparse_super2"],
    ...["-E", "lazy_itable_init=0,assume_storage_prezeroed=1,packed_meta_blocks=1,num_backup_sb=0,nodiscard"],
    ...["-d", options.staging, options.path, String(Math.ceil(options.sizeBytes / BLOCK_BYTES))],
  ];
}

/** Runs a tool. Returns null when it made the disk, or its error when it refused the tree. */
async function tryTool(
  argv: string[],
  options: BaseDiskOptions,
  env: Record<string, string>,
): Promise<CommandError | null> {
  try {
    const confinement = {
      readable: [options.staging],
      writable: [dirname(options.path)],
      network: null,
      capabilities: CAPABILITIES,
    };
    await runTool({ argv, env, confinement }, { ...options, fileBytesMax: DISK_BYTES_MAX });
    return null;
  } catch (error) {
    const common = commonFailure(error, options.timeoutMs);
    if (common !== null) throw common;
    return error as CommandError;
  }
}

/** Adds missing directories. An existing entry stays, whatever its type; symlinks are not followed. */
async function addDirectories(root: string): Promise<void> {
  for (const [name, mode] of Object.entries(DIRECTORIES)) {
    const path = join(root, name);
    const existing = await lstat(path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOENT") throw error;
      return null;
    });
    if (existing !== null) continue;
    await mkdir(path);
    await chmod(path, mode);
  }
}

/** Upper bounds of the space that the tree needs. Extra space costs nothing, because it stays a hole. */
async function ext4Size(
  options: BaseDiskOptions,
  { bytes, entries }: TreeUsage,
): Promise<{ sizeBytes: number; inodes: number }> {
  const apparentBytes = await diskUsageSum(["--apparent-size", "--block-size=1"], {
    ...options,
    directory: options.staging,
  });
  const contentBytes = Math.max(apparentBytes, bytes) * 1.05;
  const sizeBytes = Math.ceil(contentBytes + entries * EXT4_ENTRY_BYTES + EXT4_SPARE_BYTES);
  return { sizeBytes, inodes: entries + EXT4_SPARE_INODES_COUNT };
}
