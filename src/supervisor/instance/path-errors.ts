import { constants } from "node:os";
import { ApiError } from "../../domain/errors.ts";
import { AgentError } from "../../vm/agent/agent.ts";

/** Host and guest are both Linux on x86_64, and so share their error numbers. */
const { EACCES, EINVAL, ENOENT, ENXIO, EPERM, EROFS } = constants.errno;

/** Error numbers that mean that a path of the request does not fit the image, by the attempted action. */
const ERRNOS = {
  /** The path is not a regular file: a FIFO without a reader, a device, a socket, a dangling symlink. */
  placing: [ENOENT, ENXIO, EACCES, EINVAL],
  /** The directory cannot be created, as in /proc, is a dangling symlink, or must not be entered. */
  entering: [EPERM, ENOENT, EACCES, EINVAL, EROFS],
} as const satisfies Record<string, readonly number[]>;

/** @throws ApiError `invalid_path` when the path of the request is the cause; otherwise `error` */
export function rethrowPathError(error: unknown, path: string, doing: keyof typeof ERRNOS): never {
  const errnos: readonly number[] = ERRNOS[doing];
  if (!(error instanceof AgentError) || !errnos.includes(error.errno)) throw error;
  throw new ApiError("invalid_path", error.message, { path, errno: error.errno }, { cause: error });
}
