/** True when grants of a token allow something; `*` is every scope but the operator's, which is granted by name alone. */
export function mayDo(scopes: readonly string[], scope: string): boolean {
  return scopes.includes(scope) || (scope !== "operator" && scopes.includes("*"));
}
