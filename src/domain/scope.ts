export const SCOPES = [
  "images:read",
  "images:import",
  "images:tag",
  "images:delete",
  "files:read",
  "files:write",
  "instances:spawn",
  "instances:exec",
  "instances:network",
  "instances:ingress",
  "instances:read",
  "operations:read",
  "operations:cancel",
  "operator",
] as const;

export type Scope = (typeof SCOPES)[number];
/** A grant of a token: a scope, or `*` for all scopes but `operator`, which opens other accounts and the host. */
export type Grant = Scope | "*";

export function isGrant(value: string): value is Grant {
  return value === "*" || (SCOPES as readonly string[]).includes(value);
}

export function allows(grants: ReadonlySet<string>, scope: Scope): boolean {
  return grants.has(scope) || (scope !== "operator" && grants.has("*"));
}

export const TOKEN_STATES = ["valid", "expired", "revoked"] as const;
/** Whether a token can be used; one that was revoked stays so when it expires. */
export type TokenState = (typeof TOKEN_STATES)[number];
