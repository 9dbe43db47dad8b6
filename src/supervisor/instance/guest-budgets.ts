import type { MergeSize } from "../merging/merge-policy.ts";

/*
 * What honest work takes in a guest, and what it is allowed. On an idle host an emulated guest with one processor takes
 * 70 µs to list an entry, which is 80 bytes of the listing, and writes 100 MiB/s; one under KVM is quicker by ten times.
 * Each allowance is that of the emulated guest times four to six, which leaves room for a host that is busy with as many
 * other machines, or has a slow disk; and each budget begins with a fixed part, for steps whose size nobody knows.
 */

const MIB_BYTES = 1_048_576;
/** For what a guest writes out or copies: 16 MiB/s. */
const MIB_WRITE_MS = 1000 / 16;
/** For what the host sends a guest: emulated, 40 MiB/s are usual. */
const MIB_PUT_MS = 1000 / 8;
/** For the listing of a disk. */
const ENTRY_LIST_MS = 0.3;
const ENTRY_LISTING_BYTES = 80;
/** Finding the files of many layers, copying one and listing it: emulated, 300 µs are usual. */
const ENTRY_MERGE_MS = 2;
/** A merge has only the processor time that nobody else wants. */
const MERGE_RATIO = 4;

/** Disks are found and mounted, the command is started: a second under emulation, more for a hundred layers. */
const PREPARE_MS = 120_000;
/** The same for a disk that is only listed. */
const LIST_MS = 120_000;
const MERGE_MS = 60_000;
/** Beside what the size of the work gives. */
export const CAPTURE_MS = 30_000;
/**
 * A guest lists what its command has made in a fifth of the time that making it took, with one processor that emulates.
 * Several processors make more at a time, and only one lists.
 */
const LISTING_RATIO = 4;

/** What an instance may take until its command runs. `sentBytes`: of the input files, as far as the guest took them. */
export function prepareMs(sentBytes: number): number {
  return PREPARE_MS + (sentBytes / MIB_BYTES) * MIB_PUT_MS;
}

/** What a run's end is measured by. */
export interface CaptureSize {
  /** of the scratch disk, as allocated on the host's, when the command had ended */
  readonly writtenBytes: number;
  /** as it is now: what was in the guest's memory is written out meanwhile */
  readonly nowBytes: number;
  /** memory of the guest, which is as much as can be left to write */
  readonly memoryBytes: number;
  /** of the listing, as far as it came */
  readonly listedBytes: number;
  /** how long the command ran */
  readonly ranMs: number;
}

/**
 * What everything after the command may take. A guest may claim any number of entries, so a listing gets no more time
 * than it could have taken to make them.
 */
export function captureMs({ writtenBytes, nowBytes, memoryBytes, listedBytes, ranMs }: CaptureSize): number {
  // What is on the disk when the command ends need not be written again; the guest's memory holds no more than this.
  const bytes = Math.min(Math.max(writtenBytes, nowBytes), memoryBytes);
  const listingMs = Math.min((listedBytes / ENTRY_LISTING_BYTES) * ENTRY_LIST_MS, LISTING_RATIO * ranMs);
  return CAPTURE_MS + (bytes / MIB_BYTES) * MIB_WRITE_MS + listingMs;
}

/** What the listing of a base disk may take, its mounting included. `entryCount`: of the tree that it was made of. */
export function listBaseMs(entryCount: number): number {
  return LIST_MS + entryCount * ENTRY_LIST_MS;
}

/** What a merge of layers of that size may take in all. */
export function mergeMs({ sizeBytes, entryCount }: MergeSize): number {
  return MERGE_RATIO * (MERGE_MS + (sizeBytes / MIB_BYTES) * MIB_WRITE_MS + entryCount * ENTRY_MERGE_MS);
}
