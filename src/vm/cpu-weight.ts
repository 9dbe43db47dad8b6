/** Shares of the host's processors that machines get when others want them, too; the default of the kernel is 100. */
export const CpuWeight = {
  /** All machines beside the daemon, however many there are; they must go on while it unpacks an image. */
  together: 50,
  /** Each among the others. */
  inUse: 50,
  /** What waits, or is made to wait, takes what nobody else wants; not so little that it never gets ready. */
  waiting: 5,
} as const;
