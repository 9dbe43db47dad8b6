import { tokenOfKey } from "../../service/e2b/keys.ts";
import type { Service } from "../../service/service.ts";
import { type Caller, callerOf } from "../auth.ts";
import type { ApiOptions } from "../options.ts";
import { rawQuery } from "../query.ts";
import { E2bError } from "./errors.ts";

/**
 * The caller of a request with a key.
 * @throws E2bError 401, with the same message for every reason
 */
export async function provenByKey(request: Request, verifyToken: ApiOptions["verifyToken"]): Promise<Caller> {
  const key = request.headers.get("x-api-key");
  const caller = key === null ? null : await callerOf(tokenOfKey(key), verifyToken);
  if (caller === null) throw new E2bError(401, "missing or invalid API key: send a token in X-API-Key");
  return caller;
}

/** Prefix of the paths at which files are uploaded without a key: the last part is the hash, the parameter `secret` proves it. */
export const UPLOAD_PREFIX = "/upload/";

/** The caller who made the address of an upload. @throws E2bError 401 */
export async function provenByAddress(request: Request, path: string, { e2b }: Service): Promise<Caller> {
  const secret = new URLSearchParams(rawQuery(request.url)).get("secret") ?? "";
  const principal = await e2b.uploads.caller(secret, path.slice(UPLOAD_PREFIX.length));
  if (principal === null) throw new E2bError(401, "the address of the upload is not valid, or has expired");
  return { principal, isAllowed: async () => true };
}

/** The base of addresses on this listener, as the client sees it: the gateway says so. Without a slash at its end. */
export function originOf({ headers }: Request): string {
  return `${headers.get("x-forwarded-proto") ?? "http"}://${headers.get("x-forwarded-host") ?? "localhost"}`;
}

/** The address of the client: the gateway says so. */
export function addressOf({ headers }: Request): string {
  return headers.get("x-forwarded-for") ?? "";
}
