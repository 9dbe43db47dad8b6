import { open } from "node:fs/promises";

/** Position of the superblock on an ext4 disk, and of its fields, in `bytes` (Linux: fs/ext4/ext4.h). */
const SUPERBLOCK = { offset: 1024, bytes: 256 } as const;
const FIELD = { magic: 0x38, uuid: 0x68 } as const;
const EXT4_MAGIC = 0xef53;
const UUID_BYTES = 16;

/** The UUID of the ext4 file system on a disk, in hex; null for a disk without one. */
export async function ext4Uuid(path: string): Promise<string | null> {
  await using file = await open(path, "r");
  const { buffer, bytesRead } = await file.read(Buffer.alloc(SUPERBLOCK.bytes), 0, SUPERBLOCK.bytes, SUPERBLOCK.offset);
  if (bytesRead < SUPERBLOCK.bytes || buffer.readUInt16LE(FIELD.magic) !== EXT4_MAGIC) return null;
  return buffer.subarray(FIELD.uuid, FIELD.uuid + UUID_BYTES).toString("hex");
}
