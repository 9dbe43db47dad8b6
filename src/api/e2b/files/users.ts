import { posix } from "node:path";
import { ApiError } from "../../../domain/errors.ts";
import type { GuestUser } from "../../../domain/tree/guest-file.ts";
import { type ByteString, type GuestPath, parseGuestPath, textToByteString } from "../../../domain/tree/guest-path.ts";
import type { Principal } from "../../../service/parts.ts";
import type { GuestFileUseCases } from "../../../service/running/files.ts";
import type { Target } from "../../../service/running/running.ts";

export type { GuestUser };

const ROOT = "root";
/** The user of a guest whose passwd has not even root. */
const BARE_ROOT: GuestUser = {
  name: ROOT as ByteString,
  uid: 0,
  gid: 0,
  home: "/" as ByteString,
  shell: "/bin/sh" as ByteString,
};
/** Names that a request may have; a colon would add a group. */
const NAME = /^[^:\0\n]{1,256}$/;

/** The look-up of users, and the settings for it. */
export interface UserParts {
  readonly service: { readonly guestFiles: Pick<GuestFileUseCases, "user"> };
  readonly settings: { readonly defaultUser: string };
}

/** The guest, and in whose name it is asked. */
export interface UserPlace {
  readonly principal: Principal;
  readonly target: Target;
}

/**
 * The user of a request, from the guest's passwd as it is now.
 * @param name null: the default user, or root where the guest has no such user
 * @throws ApiError `unauthorized` for a user that the guest does not have; as `GuestFileUseCases.user` does
 */
export async function guestUser(
  { service, settings }: UserParts,
  { principal, target }: UserPlace,
  name: string | null,
  signal: AbortSignal,
): Promise<GuestUser> {
  const find = (text: string) => namedUser(service.guestFiles, principal, { target, user: text, signal });
  if (name === null) return (await find(settings.defaultUser)) ?? (await find(ROOT)) ?? BARE_ROOT;
  const user = NAME.test(name) ? await find(name) : null;
  if (user !== null) return user;
  throw new ApiError("unauthorized", `invalid username: '${name.slice(0, 256)}'`);
}

/** The user with this name; null: there is none. A number is a name as well, and not the one of a user without it. */
async function namedUser(
  guestFiles: UserParts["service"]["guestFiles"],
  principal: Principal,
  request: Parameters<GuestFileUseCases["user"]>[1],
): Promise<GuestUser | null> {
  try {
    const user = await guestFiles.user(principal, request);
    return user.name === textToByteString(request.user) ? user : null;
  } catch (error) {
    if (error instanceof ApiError && error.code === "not_found" && error.details["errno"] !== undefined) return null;
    throw error;
  }
}

/**
 * The path that a text of a request names for a user: absolute, below the home by `~`, or relative to the home.
 * @throws ApiError `invalid_path`
 */
export function resolvePath({ home }: Pick<GuestUser, "home">, path: string): GuestPath {
  const bytes = textToByteString(path);
  if (/^~[^/]/.test(bytes)) throw new ApiError("invalid_path", "cannot expand user-specific home dir");
  const below = bytes.startsWith("~") ? bytes.slice(1) : bytes;
  const isAbsolute = bytes.startsWith("/");
  // A component `..` of a request is that of its text: what a symlink in front of it leads to does not count.
  return parseGuestPath(posix.normalize(isAbsolute ? bytes : `${home}/${below}`) as ByteString);
}

/** The user that a call names in its field Authorization; null: none, which is the default user. */
export function userNameIn(headers: Headers): string | null {
  const [, encoded] = /^Basic +([A-Za-z0-9+/_-]*={0,2}) *$/i.exec(headers.get("authorization") ?? "") ?? [];
  return encoded === undefined ? null : (Buffer.from(encoded, "base64").toString("utf8").split(":", 1)[0] ?? "");
}
