import { tokenOfKey } from "../../service/e2b/keys.ts";
import { type Caller, callerOf } from "../auth.ts";
import type { ApiOptions } from "../options.ts";
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

/** The base of addresses on this listener, as the client sees it: the gateway says so. Without a slash at its end. */
export function originOf({ headers }: Request): string {
  return `${headers.get("x-forwarded-proto") ?? "http"}://${headers.get("x-forwarded-host") ?? "localhost"}`;
}

/** The address of the client: the gateway says so. */
export function addressOf({ headers }: Request): string {
  return headers.get("x-forwarded-for") ?? "";
}
