import { isStandIn, type Segment } from "./attach-plan.ts";

/**
 * A disk is merged with those above it once they have come to an eighth of it. So a plan has at most about one disk
 * for each time that the chain grew eightfold, and what is merged was merged that often before, a few times each.
 */
const GROWTH_RATIO = 8;
/** What an entry costs to copy beside its content, in `bytes` that take as long. */
const ENTRY_BYTES = 4096;
/** Disks of a plan's end that are merged at once: more are found in the guest as fast, but take much longer to attach. */
export const MERGE_COUNT_MAX = 64;

/** Part of a plan, by positions in it; `to` is included. */
export interface Merge {
  readonly from: number;
  readonly to: number;
}

export interface MergeLimits {
  /** fewer disks than these are not worth a machine */
  readonly countMin: number;
  /** of all that is merged together */
  readonly bytesMax: number;
  /** of those layers among it that nothing stands in for yet: by as much the merged layers may grow */
  readonly addedBytesMax: number;
  /** disks up to this position stay as they are; default 0, the base */
  readonly floor?: number;
}

/**
 * Which disks of a plan to merge next, or null when that is not worth it: the highest group of them in which none is
 * much larger than all above it in the group; a group of many from its lower end on. The base, which comes first, is
 * in none.
 */
export function nextMerge(plan: readonly Segment[], limits: MergeLimits): Merge | null {
  for (let end = plan.length - 1; end > (limits.floor ?? 0); ) {
    const from = groupBelow(plan, end, limits);
    const count = Math.min(end - from + 1, MERGE_COUNT_MAX);
    if (count >= Math.max(2, limits.countMin)) return { from, to: from + count - 1 };
    end = Math.min(from, end) - 1;
  }
  return null;
}

/** The lowest disk that may be merged with those above it up to `end`; above `end` when not even that one may. */
function groupBelow(plan: readonly Segment[], end: number, limits: MergeLimits): number {
  const { bytesMax, addedBytesMax, floor = 0 } = limits;
  let from = end + 1;
  let weight = 0;
  let sizeBytes = 0;
  let addedBytes = 0;
  for (let at = end; at > floor; at--) {
    const segment = plan[at] as Segment;
    if (at < end && weightOf(segment) >= GROWTH_RATIO * weight) break;
    sizeBytes += segment.sizeBytes;
    if (!isStandIn(segment)) addedBytes += segment.sizeBytes;
    if (sizeBytes > bytesMax || addedBytes > addedBytesMax) break;
    from = at;
    weight += weightOf(segment);
  }
  return from;
}

function weightOf({ sizeBytes, entryCount }: Segment): number {
  return sizeBytes + entryCount * ENTRY_BYTES;
}

/** What disks hold together. */
export type MergeSize = Pick<Segment, "sizeBytes" | "entryCount">;

export function mergeSize(segments: readonly Segment[]): MergeSize {
  const sizeBytes = segments.reduce((sum, segment) => sum + segment.sizeBytes, 0);
  const entryCount = segments.reduce((sum, segment) => sum + segment.entryCount, 0);
  return { sizeBytes, entryCount };
}

/** Size of the disk that a merge needs, in `bytes`: room for all that it reads, and an inode for each entry. */
export function mergeDiskBytes(segments: readonly Segment[]): number {
  const { sizeBytes, entryCount } = mergeSize(segments);
  return 2 * sizeBytes + INODES_RATIO * entryCount * INODE_DISTANCE_BYTES;
}

/** What mke2fs reckons a file to take, and so how many inodes it makes. */
const INODE_DISTANCE_BYTES = 16_384;
/** Directories of links and those that a file system has by itself are entries, too. */
const INODES_RATIO = 1.5;
