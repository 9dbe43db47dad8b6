export const CWD_DEFAULT = "/root";
export const FILE_MODE_DEFAULT = "0644";
export const TIMEOUT_SECONDS_DEFAULT = 300;
/** Bounds of the time for a checkpoint, in `seconds`. */
export const CHECKPOINT_TIMEOUT_SECONDS_DEFAULT = 300;
export const CHECKPOINT_TIMEOUT_SECONDS_MAX = 3600;
/** Longest command, argument or env string, in `bytes`: Linux's MAX_ARG_STRLEN without the final NUL. */
export const ARGUMENT_BYTES_MAX = 131_071;
/**
 * Largest sum of all arguments and env strings, in `bytes`: execve allows a quarter of the guest's 8 MiB stack limit, and
 * PATH, HOME, HOSTNAME and the executable's name need some of it.
 */
export const ARGUMENTS_BYTES_MAX = 2_080_768;
/** Largest number of variables of a command, without those of its image. */
export const ENV_COUNT_MAX = 4096;
/** Largest standard input after decoding, in `bytes`. */
export const STDIN_BYTES_MAX = 10_485_760;
/** Prefix of binary standard input. */
export const STDIN_BASE64_PREFIX = "base64:";
/** Longest name of a user of a guest, in `characters`. */
export const USER_LENGTH_MAX = 256;
/** Largest number of input files of an instance. */
export const FILES_COUNT_MAX = 1024;

/** A sample of a running instance, from the cgroup of its VM. */
export interface InstanceStats {
  readonly cpuTimeMs: number;
  /** share of one CPU since the previous sample, in `percent` (200 is two CPUs); 0 in the first sample */
  readonly cpuPercent: number;
  readonly memoryBytes: number;
  readonly memoryPeakBytes: number;
  readonly pids: number;
  /** `milliseconds` since the epoch */
  readonly at: number;
}
