import { ApiError } from "../domain/errors.ts";
import { allows, type Scope } from "../domain/scope.ts";
import type { Principal } from "../service/parts.ts";
import type { ApiOptions } from "./options.ts";

/** The scheme is case-insensitive; the token has no blanks. */
const BEARER = /^Bearer +([^\s,]+)$/i;

/** The token of a request; undefined when it has none. */
function tokenOf(request: Request): string | undefined {
  return BEARER.exec(request.headers.get("authorization") ?? "")?.[1];
}

/**
 * A function that tells whether the token of a request is still valid. It does not reject: when a token cannot be checked,
 * it counts as valid.
 */
export function tokenCheck(request: Request, verifyToken: ApiOptions["verifyToken"]): () => Promise<boolean> {
  const token = tokenOf(request) ?? "";
  return () =>
    verifyToken(token).then(
      (principal) => principal !== null,
      () => true,
    );
}

/**
 * The principal of a request.
 * @throws ApiError `unauthorized`, with the same message for every reason
 */
export async function authenticate(request: Request, verifyToken: ApiOptions["verifyToken"]): Promise<Principal> {
  const token = tokenOf(request);
  const principal = token === undefined ? null : await verifyToken(token);
  if (principal === null) throw new ApiError("unauthorized", "missing or invalid bearer token");
  return principal;
}

/** @throws ApiError `forbidden` */
export function authorize(principal: Principal, scope: Scope): void {
  if (!allows(principal.grants, scope)) {
    throw new ApiError("forbidden", `the token does not allow ${scope}`, { scope });
  }
}
