/*
 * Limits on what a guest can make the host store and compute. A layer that exceeds one is refused as a whole.
 */

/** Entries of one layer, including its root. */
export const INDEX_ENTRIES_COUNT_MAX = 2_000_000;

/** Limits of one layer. */
export interface IndexLimits {
  /** entries, including the root */
  readonly entriesCountMax: number;
  /** length of the index stream, in `bytes`; it also bounds the index file */
  readonly streamBytesMax: number;
  /** length of all names, in `bytes`; the writer keeps them in memory */
  readonly namesBytesMax: number;
  /** extents of all files */
  readonly extentsCountMax: number;
}

export const INDEX_LIMITS: IndexLimits = {
  entriesCountMax: INDEX_ENTRIES_COUNT_MAX,
  streamBytesMax: 1_073_741_824,
  namesBytesMax: 134_217_728,
  extentsCountMax: 8_000_000,
};
/** Longest path in `bytes`. With relative paths, a guest can nest directories deeper than PATH_MAX. */
export const INDEX_PATH_BYTES_MAX = 65_536;
/** Directories above an entry, without the root. */
export const INDEX_DEPTH_COUNT_MAX = 4096;
/** Longest symlink target in `bytes`: PATH_MAX without the final NUL. */
export const LINK_TARGET_BYTES_MAX = 4095;
/** Extended attributes of one entry. */
export const XATTRS_COUNT_MAX = 1024;
/** Longest name of an extended attribute in `bytes`. */
export const XATTR_NAME_BYTES_MAX = 255;
/** Longest value of an extended attribute in `bytes`. */
export const XATTR_VALUE_BYTES_MAX = 65_536;
/** Largest disk in `bytes`; the map of used blocks takes up to 1/8192 of it. */
export const DISK_BYTES_MAX = 2_199_023_255_552;
/** Largest modification time in `seconds` before or after the epoch: the range of a JavaScript date. */
export const MTIME_SECONDS_MAX = 8_640_000_000_000;
/** Memory of all small indexes being written, and of one, in `bytes`: about 150,000 entries. */
export const INDEX_MEMORY_SHARED_BYTES_MAX = 134_217_728;
export const INDEX_MEMORY_EACH_BYTES_MAX = 16_777_216;
/** Symlinks that are followed to resolve one path; the same as in Linux. */
export const SYMLINK_HOPS_MAX = 40;
/** Components of one path, including those of symlinks: twice as many as a path without symlinks can have. */
export const PATH_STEPS_COUNT_MAX = 4096;
/** Look-ups in single layers to resolve one path: enough for the deepest path in 128 layers. */
export const PATH_LOOKUPS_COUNT_MAX = 262_144;
/** Layers that stay open for later readers. */
export const OPEN_LAYERS_COUNT_MAX = 512;
/** Cached pages of their indexes, in `bytes`. */
export const INDEX_PAGES_BYTES_MAX = 16_777_216;
/** Largest index that is kept in memory, and all of them together, in `bytes`; decoded they take about four times as much. */
export const SMALL_INDEX_BYTES_MAX = 16_384;
export const SMALL_INDEXES_BYTES_MAX = 8_388_608;
/** Size of a chunk of a download, in `bytes`. */
export const READ_CHUNK_BYTES = 262_144;
/** Entries that a merge keeps in memory for each layer. */
export const LIST_PAGE_COUNT = 256;
/** Entries that a merge of many layers keeps in memory; fewer deep in a walk. */
export const LIST_PAGES_COUNT_MAX = 4096;
/** Memory for hard-linked files of all archives, in `bytes`; beyond it, further names become separate files. */
export const ARCHIVE_LINKS_BYTES_MAX = 67_108_864;
/** An upload checks the free space after every so many `bytes`. */
export const SPACE_CHECK_BYTES = 16_777_216;
/** Limits of one page of differences of two images: `milliseconds`, and approximate `bytes` of paths. */
export const DIFF_MS_MAX = 10_000;
export const DIFF_PATHS_BYTES_MAX = 1_048_576;
/** Limits of one search: `bytes` read, entries visited, and `milliseconds`. */
export const GREP_BYTES_MAX = 1_073_741_824;
export const GREP_ENTRIES_COUNT_MAX = 1_000_000;
export const GREP_MS_MAX = 10_000;
/** Longer lines are searched up to this length, in `bytes`. */
export const GREP_LINE_BYTES_MAX = 65_536;
/** Instructions of a pattern times `bytes` in one test, which takes a second at most. Longer lines are searched in part. */
export const GREP_TEST_WORK_MAX = 33_554_432;
/** Instructions of all patterns of a search: more than 1,000 bytes of a line can be tested at a time then. */
export const GREP_PROGRAM_SIZE_MAX = 32_768;
/** Paths and lines in the result of one search, approximately, in `bytes`. */
export const GREP_FOUND_BYTES_MAX = 4_194_304;
/** Numbers in the result of one search, approximately: nine for each line, and two for each range that matches. */
export const GREP_FOUND_NUMBERS_COUNT_MAX = 524_288;
/** Searches that run at a time. */
export const GREP_RUNNING_COUNT_MAX = 2;
/** Size of an event log, in `bytes`, above which the output of additional processes is dropped. */
export const EVENT_LOG_BYTES_MAX = 67_108_864;
