/*
 * Bounds of what a guest may make the host keep and compute. A layer beyond them is refused as a whole.
 */

/** Entries of one layer, its root included. */
export const INDEX_ENTRIES_COUNT_MAX = 2_000_000;

/** What one layer may amount to. */
export interface IndexLimits {
  /** entries, the root included */
  readonly entriesCountMax: number;
  /** of the index stream in `bytes`: bounds the file that it becomes */
  readonly streamBytesMax: number;
  /** of all names in `bytes`; the writer holds them in memory */
  readonly namesBytesMax: number;
  /** of all files */
  readonly extentsCountMax: number;
}

export const INDEX_LIMITS: IndexLimits = {
  entriesCountMax: INDEX_ENTRIES_COUNT_MAX,
  streamBytesMax: 1_073_741_824,
  namesBytesMax: 134_217_728,
  extentsCountMax: 8_000_000,
};
/** Longest path in `bytes`. A guest can nest deeper than PATH_MAX, one relative step after the other. */
export const INDEX_PATH_BYTES_MAX = 65_536;
/** Directories above an entry, its layer's root not counted. */
export const INDEX_DEPTH_COUNT_MAX = 4096;
/** Longest symlink target in `bytes`: PATH_MAX less the final NUL. */
export const LINK_TARGET_BYTES_MAX = 4095;
/** Extended attributes of one entry. */
export const XATTRS_COUNT_MAX = 1024;
/** Longest name of an extended attribute in `bytes`. */
export const XATTR_NAME_BYTES_MAX = 255;
/** Longest value of an extended attribute in `bytes`. */
export const XATTR_VALUE_BYTES_MAX = 65_536;
/** Largest disk in `bytes`: the map of used blocks takes up to an 8192nd of it. */
export const DISK_BYTES_MAX = 2_199_023_255_552;
/** Furthest modification time in `seconds` before or after the epoch: the range of a JavaScript date. */
export const MTIME_SECONDS_MAX = 8_640_000_000_000;
/** Memory of all small indexes that are being written, and of one of them, in `bytes`: about 150,000 entries. */
export const INDEX_MEMORY_SHARED_BYTES_MAX = 134_217_728;
export const INDEX_MEMORY_EACH_BYTES_MAX = 16_777_216;
/** Symlinks followed in the resolution of one path, as in Linux. */
export const SYMLINK_HOPS_MAX = 40;
/** Components of one path, those of symlinks on the way counted in: twice what a path without symlinks can have. */
export const PATH_STEPS_COUNT_MAX = 4096;
/** Directories of single layers that are searched for one path: as deep a path as there can be, in 128 layers. */
export const PATH_LOOKUPS_COUNT_MAX = 262_144;
/** Layers whose files stay open for the next reader. */
export const OPEN_LAYERS_COUNT_MAX = 512;
/** Pages of their indexes that are kept in memory, in `bytes`. */
export const INDEX_PAGES_BYTES_MAX = 16_777_216;
/** Largest index that is kept in memory, and all of them together, in `bytes`; decoded they take about four times that. */
export const SMALL_INDEX_BYTES_MAX = 16_384;
export const SMALL_INDEXES_BYTES_MAX = 8_388_608;
/** Chunk of a download in `bytes`. */
export const READ_CHUNK_BYTES = 262_144;
/** Entries that a merge holds per layer. */
export const LIST_PAGE_COUNT = 256;
/** Entries that a merge of many layers holds in all, where it is not deep in a walk. */
export const LIST_PAGES_COUNT_MAX = 4096;
/** Hard-linked files that all archives together remember, in `bytes`; later names become files of their own. */
export const ARCHIVE_LINKS_BYTES_MAX = 67_108_864;
/** An upload looks at the room that is left after as many `bytes`. */
export const SPACE_CHECK_BYTES = 16_777_216;
/** `milliseconds` that one page of the differences of two images takes, and `bytes` of its paths, nearly. */
export const DIFF_MS_MAX = 10_000;
export const DIFF_PATHS_BYTES_MAX = 1_048_576;
/** Bounds of one search: what it reads in `bytes`, entries that it looks at, `milliseconds` that it takes. */
export const GREP_BYTES_MAX = 1_073_741_824;
export const GREP_ENTRIES_COUNT_MAX = 1_000_000;
export const GREP_MS_MAX = 10_000;
/** A longer line is searched up to here, in `bytes`. */
export const GREP_LINE_BYTES_MAX = 65_536;
/** Instructions of a pattern times `bytes` that one test runs it over: a second at most. Longer lines are searched in part. */
export const GREP_TEST_WORK_MAX = 33_554_432;
/** Paths and lines that one search gives, in `bytes`, nearly. */
export const GREP_FOUND_BYTES_MAX = 4_194_304;
/** As much of a line is given, in `bytes`. */
export const GREP_TEXT_BYTES_MAX = 4096;
/** Searches that run at a time, and those of one account that wait. */
export const GREP_RUNNING_COUNT_MAX = 2;
export const GREP_WAITING_COUNT_MAX = 32;
