import { expect, test } from "bun:test";
import { allows, isGrant, SCOPES } from "../../../src/domain/scope.ts";

test("`*` is all scopes but that of operators, which must be granted by its name", () => {
  const everything = new Set(["*"]);
  for (const scope of SCOPES) {
    expect([scope, allows(everything, scope)]).toEqual([scope, scope !== "operator"]);
    expect(allows(new Set([scope]), scope)).toBe(true);
    expect(allows(new Set(["*", "operator"]), scope)).toBe(true);
    expect(allows(new Set(["operator"]), scope)).toBe(scope === "operator");
  }
});

test("grants are the scopes and `*`, in their one spelling", () => {
  expect([...SCOPES, "*"].every(isGrant)).toBe(true);
  expect(["", "operator ", "Operator", "operator:read", "**"].some(isGrant)).toBe(false);
});
