/** Shares of the host's processors that machines get when others want them, too; the default of the kernel is 100. */
export const CpuWeight = {
  /** Below the default: many busy guests must not starve the daemon. */
  inUse: 50,
  /** What waits, or is made to wait, takes what nobody else wants; not so little that it never gets ready. */
  waiting: 5,
} as const;
