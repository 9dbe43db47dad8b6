import { constants } from "node:os";
import { ApiError } from "../../../domain/errors.ts";
import type { GuestFileProperties } from "../../../domain/tree/guest-file.ts";
import { displayName, type GuestPath } from "../../../domain/tree/guest-path.ts";
import type { FileRequest } from "../../../service/running/files.ts";
import { rawQuery } from "../../query.ts";
import { type Envd, envdOf } from "../envd-access.ts";
import { E2bError } from "../errors.ts";
import type { E2bParts } from "../options.ts";
import { type GuestUser, guestUser, resolvePath } from "./users.ts";

const { ENOENT, EISDIR } = constants.errno;

/** The sandbox of a request, and the user who owns what is made. */
export interface FilesPlace {
  readonly envd: Envd;
  readonly user: GuestUser;
  /** Owner of what the request makes. */
  readonly owner: NonNullable<GuestFileProperties["owner"]>;
  readonly signal: AbortSignal;
}

/** The query of a request for files. */
export function queryOf(request: Request): URLSearchParams {
  return new URLSearchParams(rawQuery(request.url));
}

/** @param name null: the default user. @throws ApiError as `guestUser` does */
export async function placeOf(parts: E2bParts, request: Request, name: string | null): Promise<FilesPlace> {
  const envd = envdOf(request);
  const user = await guestUser(parts, envd, name, request.signal);
  return { envd, user, owner: { uid: user.uid, gid: user.gid }, signal: request.signal };
}

/** A path of a request. The agent of this dialect acts as root. @throws ApiError `invalid_path` */
export function fileAt({ envd, user, signal }: FilesPlace, path: string): FileRequest {
  return { target: envd.target, path: resolvePath(user, path), user: "", signal };
}

/** The error number of the guest for a request; undefined: the error is another one. */
export function errnoOf(error: unknown): number | undefined {
  const errno = error instanceof ApiError ? error.details["errno"] : undefined;
  return typeof errno === "number" ? errno : undefined;
}

/** Ignores that a file is missing, which is to be removed. @throws `error`, unless it says that */
export function unlessMissing(error: unknown): void {
  if (errnoOf(error) !== ENOENT) throw error;
}

/** Does work on the file of a path. @throws E2bError in the words of this dialect; as `work` does */
export async function atPath<T>(path: GuestPath, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === ENOENT) throw new E2bError(404, `path '${displayName(path)}' does not exist`);
    if (errno === EISDIR) throw new E2bError(400, `path '${displayName(path)}' is a directory`);
    if (error instanceof ApiError && error.code === "insufficient_storage") {
      throw new E2bError(507, "not enough disk space available");
    }
    throw error;
  }
}
