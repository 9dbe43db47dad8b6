/*
 * What an index stream begins with and what its records are made of; `vm/protocol.ts` describes the records,
 * `vm-assets/agent/protocol.h` has the same constants for the guest.
 */

export const INDEX_MAGIC = 0x58_49_50_43;
export const INDEX_VERSION = 1;
/** Longest record of an index stream in `bytes`, its length field not counted. */
export const INDEX_RECORD_BYTES_MAX = 262_144;
/** Fixed part of a record in `bytes`, its length field not counted. */
export const INDEX_RECORD_FIXED_BYTES = 72;
export const IndexFlag = { opaque: 1 } as const;
