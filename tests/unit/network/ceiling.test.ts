import { expect, test } from "bun:test";
import type { NetworkRule } from "../../../src/domain/network.ts";
import { ceilingOf } from "../../../src/service/network.ts";
import { NetworkJudge } from "../../../src/supervisor/network/judge.ts";
import { alice } from "../../support/database.ts";

const RULES: readonly NetworkRule[] = [
  { host: "*.example.org", ports: [443] },
  { host: "10.0.0.0/8", ports: "*" },
  { host: "2001:db8::/32", ports: [80] },
];
const principal = (...grants: string[]) => ({ accountId: alice, grants: new Set(grants), tokenId: "t" });
const operator = (allow: readonly NetworkRule[]) => ({ allow, record: false });

test("the ceiling is the operator's rules while the instance runs, and nothing more", () => {
  for (const scope of ["instances:network", "*"]) {
    const request = ceilingOf(principal(scope), operator(RULES));
    if (request === null) throw new Error("no network");
    const judge = new NetworkJudge({ allow: RULES, private: { names: [], ranges: [] } }, request);
    const destinations = [
      ["name", "a.example.org", 443],
      ["name", "a.example.org", 80],
      ["name", "example.com", 443],
      ["address", "10.1.2.3", 22],
      ["address", "11.1.2.3", 22],
      ["address", "2001:db8::1", 80],
      ["address", "2001:db9::1", 80],
    ] as const;
    expect(destinations.map(([kind, host, port]) => judge.allows({ kind, host, port }))).toEqual([
      ...[true, false, false, true, false, true, false],
    ]);
    expect([judge.allowsName("a.example.org"), judge.allowsName("example.com")]).toEqual([true, false]);
    // The operator has removed all rules.
    const later = new NetworkJudge({ allow: [], private: { names: [], ranges: [] } }, request);
    expect(later.allows({ kind: "name", host: "a.example.org", port: 443 })).toBe(false);
  }
});

test("without an operator's rule or the scope there is neither a network nor an error", () => {
  expect(ceilingOf(principal("instances:spawn"), operator(RULES))).toBeNull();
  expect(ceilingOf(principal(), operator(RULES))).toBeNull();
  expect(ceilingOf(principal("*"), operator([]))).toBeNull();
});
