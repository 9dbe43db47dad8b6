import type { DisksSize } from "../machines/guest-budgets.ts";
import { isMerged, type Segment } from "./attach-plan.ts";

/**
 * A disk is merged with the disks above it once their size has reached an eighth of its own. So the number of disks of a
 * plan, and the number of times that a byte is copied, grow with the logarithm of the chain's size.
 */
const GROWTH_RATIO = 8;
/** Cost of copying an entry in addition to its content, as the number of `bytes` that take as long. */
const ENTRY_BYTES = 4096;
/** Largest number of disks of one merge: a guest takes much longer to attach more. */
export const MERGE_COUNT_MAX = 64;

/** The disks of a plan to merge, by their positions; `to` is included. */
export interface Merge {
  readonly from: number;
  readonly to: number;
}

export interface MergeLimits {
  /** smallest number of disks that is worth a machine */
  readonly countMin: number;
  /** largest size of all disks that are merged together */
  readonly bytesMax: number;
  /** largest size of those of them that are not merged layers yet, which is the growth of the merged layers */
  readonly addedBytesMax: number;
  /** disks up to and including this position are not merged; the default is 0, the base */
  readonly floor?: number;
}

/**
 * Chooses the disks of a plan to merge next, or null when no merge is worth it: the highest group of disks in which none
 * is much larger than all disks above it in the group. Of a group of more than `MERGE_COUNT_MAX` it takes the lowest ones.
 * The base, which comes first, is never merged.
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

/** Position of the lowest disk that may be merged with the disks above it up to `end`; `end + 1` when none may. */
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
    if (!isMerged(segment)) addedBytes += segment.sizeBytes;
    if (sizeBytes > bytesMax || addedBytes > addedBytesMax) break;
    from = at;
    weight += weightOf(segment);
  }
  return from;
}

function weightOf({ sizeBytes, entryCount }: Segment): number {
  return sizeBytes + entryCount * ENTRY_BYTES;
}

export function mergeSize(segments: readonly Segment[]): DisksSize {
  const sizeBytes = segments.reduce((sum, segment) => sum + segment.sizeBytes, 0);
  const entryCount = segments.reduce((sum, segment) => sum + segment.entryCount, 0);
  return { sizeBytes, entryCount };
}

/** Size of the disk that a merge needs, in `bytes`: space for everything that it reads, and an inode for each entry. */
export function mergeDiskBytes(segments: readonly Segment[]): number {
  const { sizeBytes, entryCount } = mergeSize(segments);
  return 2 * sizeBytes + INODES_RATIO * entryCount * INODE_DISTANCE_BYTES;
}

/** mke2fs creates one inode for this many bytes of a disk. */
const INODE_DISTANCE_BYTES = 16_384;
/** The directory of hard links and the file system's own directories need inodes, too. */
const INODES_RATIO = 1.5;
