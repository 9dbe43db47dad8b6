/*
 * The index stream is the payload of the OUTPUT frames of an INDEX session; a frame may end anywhere in it. It has u32
 * INDEX_MAGIC and u32 INDEX_VERSION, and then records: u32 length and
 *   u8 type (d f l b c p s, w for a whiteout, x for further extents of the previous record), u8 flags, u16 xattr count,
 *   u32 mode (07777), u32 uid, u32 gid, u32 nlink, u32 mtime ns, u64 inode, u64 size, i64 mtime s, u32 rdev major,
 *   u32 rdev minor, u32 path length, u32 target length, u32 extent count, u32 zero,
 *   path (relative; empty for the root), target, xattrs (u16 name length, u16 zero, u32 value length, name, value)*,
 *   extents (u64 logical, u64 physical, u64 length)*.
 * A directory precedes its children. Extents are sorted, and unwritten ones are left out. All numbers are little-endian.
 * Keep this in sync with vm-assets/agent/protocol.h; a test compares the constants.
 */

export const INDEX_MAGIC = 0x58_49_50_43;
export const INDEX_VERSION = 1;
/** Longest record of an index stream, without its length field, in `bytes`. */
export const INDEX_RECORD_BYTES_MAX = 262_144;
/** Fixed part of a record, without its length field, in `bytes`. */
export const INDEX_RECORD_FIXED_BYTES = 72;
export const IndexFlag = { opaque: 1 } as const;
