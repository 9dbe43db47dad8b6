import { chmod, mkdir, open } from "node:fs/promises";
import { dirname, join } from "node:path";
import { run } from "../system/exec.ts";
import { scratchDirectory } from "../system/scratch.ts";
import { copySparse } from "../system/sparse.ts";

const BLOCK_BYTES = 4096;
const MKFS_MS = 60_000;

/** Position of the superblock on an ext4 disk, and of its fields, in `bytes` (Linux: fs/ext4/ext4.h). */
const SUPERBLOCK = { offset: 1024, bytes: 1024 } as const;
const FIELD = { magic: 0x38, incompatible: 0x60, readOnly: 0x64, uuid: 0x68, seed: 0x270, checksum: 0x3fc } as const;
const UUID_BYTES = 16;
const EXT4_MAGIC = 0xef53;
/** Checksums depend on the field `seed` instead of the UUID. */
const INCOMPATIBLE_SEED = 0x2000;
/** Group descriptors have checksums that depend on the UUID, or all metadata has CRC-32C checksums. */
const READ_ONLY = { groupChecksums: 0x10, checksums: 0x400 } as const;
/** CRC-32C (Castagnoli), with reversed bits. */
const CRC_POLYNOMIAL = 0x82f63b78;

/**
 * Makes an empty, sparse, writable disk at `path` with the directories `upper` and `work`, which an overlay needs. It has
 * no journal: the disk of a killed machine is discarded, and a frozen disk needs no recovery.
 * @param diskBytes virtual size; rounded down to whole blocks
 * @throws CommandError when it is too small (about 1 MiB) or the host's disk is full
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
 * The arguments of mke2fs. Metadata is packed at the front and written once, so that a copy has few bytes.
 * @param options.content directory whose contents the disk gets
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
    ...["-O", "^has_journal,^resize_inode,sparse_super2,metadata_csum", "-E", extended.join(",")],
    ...["-d", options.content, options.path, String(Math.floor(options.diskBytes / BLOCK_BYTES))],
  ];
}

/**
 * Copies a template with a new UUID, without starting a program. Overlayfs identifies layers by their UUIDs when it looks
 * for the original of a copied-up file. With two layers of the same UUID it loses that link, and a new hard link to a file
 * of the image would be a separate file.
 * @throws Error when the template is not ext4
 */
export async function createScratch(template: string, to: string): Promise<void> {
  await copySparse(template, to);
  if (!(await renewUuid(to))) throw new Error("the template of scratch disks is not ext4");
}

/**
 * Gives the file system of a disk a new UUID. It must not be mounted. A guest may have written the disk, so this reads only
 * the superblock and follows no reference in it. Returns false and writes nothing when the file system is not ext4.
 */
export async function renewUuid(path: string): Promise<boolean> {
  await using disk = await open(path, "r+");
  const superblock = Buffer.alloc(SUPERBLOCK.bytes);
  await disk.read(superblock, 0, SUPERBLOCK.bytes, SUPERBLOCK.offset);
  if (superblock.readUInt16LE(FIELD.magic) !== EXT4_MAGIC) return false;
  setUuid(superblock, Buffer.from(crypto.randomUUID().replaceAll("-", ""), "hex"));
  await disk.write(superblock, 0, SUPERBLOCK.bytes, SUPERBLOCK.offset);
  return true;
}

/** Changes the UUID in a superblock, so that checksums that depend on the old one stay valid. */
function setUuid(superblock: Buffer, uuid: Buffer): void {
  const former = superblock.subarray(FIELD.uuid, FIELD.uuid + UUID_BYTES);
  const readOnly = superblock.readUInt32LE(FIELD.readOnly);
  if ((readOnly & READ_ONLY.checksums) === 0) {
    // An old template, made under other settings of the host, may have only group checksums.
    if ((readOnly & READ_ONLY.groupChecksums) === 0) uuid.copy(former);
    return;
  }
  const incompatible = superblock.readUInt32LE(FIELD.incompatible);
  if ((incompatible & INCOMPATIBLE_SEED) === 0) {
    superblock.writeUInt32LE(crc32c(former), FIELD.seed);
    superblock.writeUInt32LE((incompatible | INCOMPATIBLE_SEED) >>> 0, FIELD.incompatible);
  }
  uuid.copy(former);
  superblock.writeUInt32LE(crc32c(superblock.subarray(0, FIELD.checksum)), FIELD.checksum);
}

/** CRC-32C as the kernel computes it: starts with all ones, and is not inverted at the end. */
function crc32c(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ ((crc & 1) === 0 ? 0 : CRC_POLYNOMIAL);
  }
  return crc >>> 0;
}
