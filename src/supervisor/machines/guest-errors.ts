import { constants } from "node:os";
import { ApiError, type ErrorCode } from "../../domain/errors.ts";
import { AgentError } from "../../vm/agent/agent.ts";

/** Host and guest are both Linux on x86_64, and so share their error numbers. */
const { errno } = constants;

/** Errors of the guest that the request causes, whatever the attempted action. */
const ERRNO_CODES: ReadonlyMap<number, ErrorCode> = new Map([
  [errno.E2BIG, "validation_error"],
  [errno.EEXIST, "invalid_path"],
  // The path lies in /proc, /sys or /dev, which are not part of the image.
  [errno.EXDEV, "invalid_path"],
  [errno.ENOTDIR, "invalid_path"],
  [errno.EISDIR, "invalid_path"],
  [errno.ETXTBSY, "invalid_path"],
  [errno.ENOSPC, "insufficient_storage"],
  [errno.ENAMETOOLONG, "invalid_path"],
  [errno.ELOOP, "invalid_path"],
]);

/** Further error numbers that mean that a path of the request does not fit the image, by the attempted action. */
const PATH_ERRNOS = {
  /** The path is not a regular file: a FIFO without a reader, a device, a socket, a dangling symlink. */
  placing: [errno.ENOENT, errno.ENXIO, errno.EACCES, errno.EINVAL],
  /** The directory cannot be created, as in /proc, is a dangling symlink, or must not be entered. */
  entering: [errno.EPERM, errno.ENOENT, errno.EACCES, errno.EINVAL, errno.EROFS],
} as const satisfies Record<string, readonly number[]>;

/** Codes of a failed request for files of a running instance, by its error numbers. */
const FILE_ERRNO_CODES: ReadonlyMap<number, ErrorCode> = new Map([
  ...ERRNO_CODES,
  [errno.ENOENT, "not_found"],
  [errno.EACCES, "forbidden"],
  [errno.EPERM, "forbidden"],
  [errno.EROFS, "forbidden"],
  [errno.EEXIST, "conflict"],
  [errno.ENOTEMPTY, "conflict"],
  [errno.EBUSY, "conflict"],
  [errno.ETXTBSY, "conflict"],
  [errno.ENODATA, "conflict"],
  [errno.EAGAIN, "too_many_requests"],
  [errno.EDQUOT, "insufficient_storage"],
  [errno.EFBIG, "payload_too_large"],
  [errno.EINVAL, "invalid_path"],
  [errno.ENXIO, "invalid_path"],
  [errno.ENODEV, "invalid_path"],
  [errno.EOPNOTSUPP, "invalid_path"],
  [errno.ERANGE, "validation_error"],
]);

/** The error for callers when the guest refuses a request for its files; `unavailable` unless the request is the cause. */
export function fileFailure(error: AgentError): ApiError {
  const code = FILE_ERRNO_CODES.get(error.errno) ?? "unavailable";
  const wait = code === "too_many_requests" ? { retry_after_seconds: 1 } : {};
  return new ApiError(code, error.message, { errno: error.errno, ...wait }, { cause: error });
}

/** The error for callers when the guest agent refuses a request; `unavailable` unless the caller's request is the cause. */
export function agentFailure(error: AgentError): ApiError {
  const code = ERRNO_CODES.get(error.errno) ?? "unavailable";
  return new ApiError(code, error.message, { errno: error.errno }, { cause: error });
}

/** Beginning of the text of ENOENT for a user of the request that the guest does not have. */
const USER_TEXT = /^(?:user|group) /;

/**
 * @throws ApiError `invalid_path` when the path of the request is the cause; `not_found` when the user is; otherwise `error`
 */
export function rethrowPathError(error: unknown, path: string, doing: keyof typeof PATH_ERRNOS): never {
  const errnos: readonly number[] = PATH_ERRNOS[doing];
  if (error instanceof AgentError && error.errno === errno.ENOENT && USER_TEXT.test(error.message)) {
    throw new ApiError(
      "not_found",
      `the guest does not know the ${error.message}`,
      { field: "user" },
      { cause: error },
    );
  }
  if (!(error instanceof AgentError) || !errnos.includes(error.errno)) throw error;
  throw new ApiError("invalid_path", error.message, { path, errno: error.errno }, { cause: error });
}
