/** Limits of one VM's cgroup; absent means unlimited. */
export interface CgroupLimits {
  readonly memoryBytes?: number;
  readonly pids?: number;
  /** 1 to 10000, as in cgroup v2's cpu.weight */
  readonly cpuWeight?: number;
}

export interface CgroupStats {
  readonly cpuTimeMs: number;
  readonly memoryBytes: number;
  readonly memoryPeakBytes: number;
  readonly pids: number;
}
