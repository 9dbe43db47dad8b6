import { constants } from "node:os";
import { ApiError } from "../../domain/errors.ts";
import { AgentError } from "../../vm/agent/agent.ts";

/** The guest's error numbers are those of this host, which is Linux on x86_64, too. */
const { EACCES, EINVAL, ENOENT, ENXIO, EPERM, EROFS } = constants.errno;

/** Error numbers that tell of a path of the request, where the image has something else, by what was done with it. */
const ERRNOS = {
  /** What lies at the path is no file: a FIFO without a reader, a device, a socket, a symlink that leads nowhere. */
  placing: [ENOENT, ENXIO, EACCES, EINVAL],
  /** The directory is missing where none can be made, as in /proc, or at the end of a symlink, or must not be entered. */
  entering: [EPERM, ENOENT, EACCES, EINVAL, EROFS],
} as const satisfies Record<string, readonly number[]>;

/** @throws ApiError `invalid_path` for the failure of a path of the request, otherwise `error`, the machine's trouble */
export function rethrowPathError(error: unknown, path: string, doing: keyof typeof ERRNOS): never {
  const errnos: readonly number[] = ERRNOS[doing];
  if (!(error instanceof AgentError) || !errnos.includes(error.errno)) throw error;
  throw new ApiError("invalid_path", error.message, { path, errno: error.errno }, { cause: error });
}
