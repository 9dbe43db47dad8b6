export const CWD_DEFAULT = "/root";
export const FILE_MODE_DEFAULT = "0644";
export const TIMEOUT_SECONDS_DEFAULT = 300;
/** Linux' MAX_ARG_STRLEN less the final NUL: the longest command, argument or env string, in `bytes`. */
export const ARGUMENT_BYTES_MAX = 131_071;
/**
 * What execve takes in all, in `bytes`: a quarter of the guest's 8 MiB stack limit, less room for PATH, HOME,
 * HOSTNAME and the executable's name.
 */
export const ARGUMENTS_BYTES_MAX = 2_080_768;
/** Standard input after decoding, in `bytes`. */
export const STDIN_BYTES_MAX = 10_485_760;
/** Prefix of binary standard input. */
export const STDIN_BASE64_PREFIX = "base64:";
/** Input files of one instance. */
export const FILES_COUNT_MAX = 1024;

/** One look at a running instance, from the cgroup of its VM. */
export interface InstanceStats {
  readonly cpuTimeMs: number;
  /** share of one CPU since the look before, in `percent` (200 is two CPUs); 0 for the first */
  readonly cpuPercent: number;
  readonly memoryBytes: number;
  readonly memoryPeakBytes: number;
  readonly pids: number;
  /** `milliseconds` since the epoch */
  readonly at: number;
}
