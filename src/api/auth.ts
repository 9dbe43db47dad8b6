import { ApiError } from "../domain/errors.ts";
import { allows, type Scope } from "../domain/scope.ts";
import type { Principal } from "../service/parts.ts";
import type { ApiOptions } from "./options.ts";

/** The scheme is case-insensitive; the token has no blanks. */
const BEARER = /^Bearer +([^\s,]+)$/i;

/** The name of the user says nothing, so it may be any. */
const BASIC = /^Basic +([A-Za-z0-9+/=]+)$/i;

/** The token of a request; undefined when it has none. */
function tokenOf(request: Request): string | undefined {
  return BEARER.exec(request.headers.get("authorization") ?? "")?.[1];
}

/** The token that is the password of a request, or its bearer token. */
function passwordOf(request: Request): string | undefined {
  const text = BASIC.exec(request.headers.get("authorization") ?? "")?.[1];
  if (text === undefined) return tokenOf(request);
  return /^[^:]*:([^\s,]+)$/.exec(Buffer.from(text, "base64").toString("utf8"))?.[1];
}

/** The caller of a request, and whether its credential is still valid. */
export interface Caller {
  readonly principal: Principal;
  /** never rejects: a token that cannot be checked counts as valid */
  readonly isAllowed: () => Promise<boolean>;
}

export interface AuthenticateOptions {
  /** true: the token may be the password of HTTP's Basic scheme, which file managers know */
  readonly basic?: boolean;
}

/**
 * The caller of a request with a token.
 * @throws ApiError `unauthorized`, with the same message for every reason
 */
export async function authenticate(
  request: Request,
  verifyToken: ApiOptions["verifyToken"],
  { basic = false }: AuthenticateOptions = {},
): Promise<Caller> {
  const token = basic ? passwordOf(request) : tokenOf(request);
  const caller = token === undefined ? null : await callerOf(token, verifyToken);
  if (caller === null) throw new ApiError("unauthorized", "missing or invalid bearer token");
  return caller;
}

/** The caller with a token; null when it is not valid. */
export async function callerOf(token: string, verifyToken: ApiOptions["verifyToken"]): Promise<Caller | null> {
  const principal = await verifyToken(token);
  if (principal === null) return null;
  const isAllowed = () =>
    verifyToken(token).then(
      (current) => current !== null,
      () => true,
    );
  return { principal, isAllowed };
}

/** @throws ApiError `forbidden` */
export function authorize(principal: Principal, scope: Scope): void {
  if (!allows(principal.grants, scope)) {
    throw new ApiError("forbidden", `the token does not allow ${scope}`, { scope });
  }
}
