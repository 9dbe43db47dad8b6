/**
 * CPU weights of cgroups: shares of the host's processors when there is competition for them. The kernel's default
 * is 100.
 */
export const CpuWeight = {
  /** All machines and imports together, against the daemon: every client waits for the daemon. */
  together: 50,
  /** One machine in use against the others; all programs of one import share this weight. */
  inUse: 50,
  /** Waiting clones and background work run on idle processors, but still get enough to become ready. */
  waiting: 5,
} as const;
