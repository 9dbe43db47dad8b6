/**
 * Shares of the host's processors that machines, and the programs of imports, get when others want them, too; the
 * default of the kernel is 100.
 */
export const CpuWeight = {
  /** All of them beside the daemon, however many there are: every client waits for what the daemon does. */
  together: 50,
  /** Each among the others; the programs of an import count together as one. */
  inUse: 50,
  /** What waits, or is made to wait, takes what nobody else wants; not so little that it never gets ready. */
  waiting: 5,
} as const;
