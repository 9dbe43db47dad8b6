/** Size of several disks together: `bytes`, and number of entries. */
export interface DisksSize {
  readonly sizeBytes: number;
  readonly entryCount: number;
}

/*
 * Time budgets of the work in a guest. On an idle host, an emulated guest with one processor takes 70 µs to list an
 * entry, which is 80 bytes of the listing, and writes 100 MiB/s; a guest under KVM is ten times as fast. Each budget is
 * four to six times what the emulated guest takes, which leaves room for a host that runs as many other machines, or has
 * a slow disk. Each begins with a fixed part, for steps whose size is unknown.
 */

const MIB_BYTES = 1_048_576;
/** Time for a MiB that a guest flushes or copies: 16 MiB/s. */
const MIB_WRITE_MS = 1000 / 16;
/** Time for a MiB that the host sends to a guest: 8 MiB/s; emulated guests usually take 40 MiB/s. */
const MIB_PUT_MS = 1000 / 8;
/** Time for an entry when a disk is listed. */
const ENTRY_LIST_MS = 0.3;
const ENTRY_LISTING_BYTES = 80;
/** Time to find an entry in many layers, copy and list it; emulated guests usually take 300 µs. */
const ENTRY_MERGE_MS = 2;
/** A merge gets only processor time that no other work wants. */
const MERGE_RATIO = 4;

/** Time to find and mount the disks and to start the command: emulated, about a second, more with a hundred layers. */
const PREPARE_MS = 120_000;
/** Time to find and mount a disk that is only listed. */
const LIST_MS = 120_000;
const MERGE_MS = 60_000;
/** The fixed part of the budget of a capture. */
export const CAPTURE_MS = 30_000;
/**
 * Listing files may take this many times as long as the command ran. With one emulated processor, listing takes a fifth
 * of the time in which the files were made; several processors make more files in that time, but only one lists them.
 */
const LISTING_RATIO = 4;

/** Budget until the command of an instance starts. `sentBytes`: size of the input files that the guest has taken so far. */
export function prepareMs(sentBytes: number): number {
  return PREPARE_MS + (sentBytes / MIB_BYTES) * MIB_PUT_MS;
}

/** The figures from which the budget of a capture is computed. */
export interface CaptureSize {
  /** allocated size of the scratch disk on the host when the command had ended */
  readonly writtenBytes: number;
  /** allocated size of the scratch disk now; it grows while the guest flushes its memory */
  readonly nowBytes: number;
  /** memory of the guest, which bounds what it can still have to flush */
  readonly memoryBytes: number;
  /** size of the listing so far */
  readonly listedBytes: number;
  /** how long the command ran */
  readonly ranMs: number;
}

/**
 * Budget of all steps after the command. A guest may claim any number of entries, so the time for listing is also
 * bounded by the time in which the command could have made them.
 */
export function captureMs({ writtenBytes, nowBytes, memoryBytes, listedBytes, ranMs }: CaptureSize): number {
  // The guest can only have to flush what its memory holds.
  const bytes = Math.min(Math.max(writtenBytes, nowBytes), memoryBytes);
  const listingMs = Math.min((listedBytes / ENTRY_LISTING_BYTES) * ENTRY_LIST_MS, LISTING_RATIO * ranMs);
  return CAPTURE_MS + (bytes / MIB_BYTES) * MIB_WRITE_MS + listingMs;
}

/** Budget to flush what a guest of so much memory has written, while its commands run and write more. */
export function flushMs(memoryBytes: number): number {
  return CAPTURE_MS + (memoryBytes / MIB_BYTES) * MIB_WRITE_MS;
}

/** Budget to mount and list a copy of a scratch, of which only the listing so far is known. */
export function listCopyMs(listedBytes: number): number {
  return LIST_MS + (listedBytes / ENTRY_LISTING_BYTES) * ENTRY_LIST_MS;
}

/** Budget to mount and list a base disk. `entryCount`: entries of the tree that it was made from. */
export function listBaseMs(entryCount: number): number {
  return LIST_MS + entryCount * ENTRY_LIST_MS;
}

/** Budget of a whole merge of layers of that size. */
export function mergeMs({ sizeBytes, entryCount }: DisksSize): number {
  return MERGE_RATIO * (MERGE_MS + (sizeBytes / MIB_BYTES) * MIB_WRITE_MS + entryCount * ENTRY_MERGE_MS);
}
