/** The network of the dialect's wire as one of the core. */

import { expect, test } from "bun:test";
import { networkOf, type WireNetwork } from "../../../../src/api/e2b/network.ts";
import { ApiError } from "../../../../src/domain/errors.ts";
import { rule } from "../../../support/network-scene.ts";

const EVERYTHING = ["*", "0.0.0.0/0", "::/0"].map((host) => rule(host, "*"));
const SOME = [rule("*.example", [443]), rule("a.example", [80, 443]), rule("8.8.8.0/24", "*")];
const ALL_TRAFFIC = "0.0.0.0/0";

test.each<[string, WireNetwork]>([
  ["nothing", {}],
  ["nulls", { allowOut: null, denyOut: null, allow_internet_access: null, rules: null, egressProxy: null }],
  ["access", { allow_internet_access: true }],
  ["allowed destinations without denied ones", { allowOut: ["a.example", "8.8.8.8"] }],
  ["all traffic, which wins", { allowOut: [ALL_TRAFFIC], denyOut: ["10.0.0.0/8"], allow_internet_access: false }],
  ["rules without transforms", { rules: { "a.example": [{}] } }],
])("%s is all that the operator allows", (_, wire) => {
  expect([networkOf(wire, EVERYTHING), networkOf(wire, SOME)]).toEqual(["ceiling", "ceiling"]);
});

test("without access and traffic there is no network, and their exceptions are its rules", () => {
  for (const wire of [
    { allow_internet_access: false },
    { denyOut: [ALL_TRAFFIC] },
    { denyOut: ["::/0", ALL_TRAFFIC] },
  ]) {
    expect(networkOf(wire, EVERYTHING)).toBe("none");
    expect(networkOf({ ...wire, allowOut: ["8.8.8.8", "*.Example"] }, EVERYTHING)).toEqual({
      allow: [rule("8.8.8.8", "*"), rule("*.example", "*")],
    });
  }
});

test("denied ranges are those of the core, with the exceptions", () => {
  expect(networkOf({ denyOut: ["8.8.8.8", "::ffff:10.0.0.0/104"], allowOut: ["1.1.1.1"] }, EVERYTHING)).toEqual({
    ...{ default: "allow", allow: [rule("1.1.1.1", "*")], deny: ["8.8.8.8", "10.0.0.0/8"] },
  });
});

test("allowed destinations have the ports that the operator permits for them", () => {
  expect(networkOf({ denyOut: [ALL_TRAFFIC], allowOut: ["a.example", "b.example", "8.8.8.8"] }, SOME)).toEqual({
    allow: [rule("a.example", [80, 443]), rule("b.example", [443]), rule("8.8.8.8", "*")],
  });
});

test("a caller that may use nothing has no network, and no error unless it names a destination", () => {
  for (const wire of [{ denyOut: ["8.8.8.8"] }, { denyOut: [ALL_TRAFFIC] }]) expect(networkOf(wire, [])).toBe("none");
  expect(networkOf({}, [])).toBe("ceiling");
  for (const entry of ["a.example", ALL_TRAFFIC]) {
    expect(refusalOf({ allowOut: [entry] }, [])).toEqual([
      "network.allowOut.0",
      `network.allowOut.0: the operator does not allow ${entry}`,
    ]);
  }
});

test.each<[string, WireNetwork, string]>([
  ["a name beyond the operator's", { allowOut: ["a.example", "a.org"] }, "network.allowOut.1"],
  ["a range beyond the operator's", { denyOut: [ALL_TRAFFIC], allowOut: ["8.8.0.0/16"] }, "network.allowOut.0"],
  ["a malformed name", { allowOut: ["http://a.example"] }, "network.allowOut.0"],
  ["an empty entry", { allowOut: [""] }, "network.allowOut.0"],
  ["a denied name", { denyOut: ["8.8.8.8", "a.example"] }, "network.denyOut.1"],
  ["10,000 allowed entries", { allowOut: Array(10_000).fill("a.example") }, "network.allowOut"],
  ["10,000 denied entries", { denyOut: Array(10_000).fill("8.8.8.8") }, "network.denyOut"],
  ["a proxy", { egressProxy: {} }, "network.egressProxy"],
  ["a transform", { rules: { "a.example": [{}, { transform: { headers: {} } }] } }, "network.rules.transform"],
])("%s is refused by name", (_, wire, field) => {
  const [named, message] = refusalOf(wire, SOME) as [string, string];
  expect(named).toBe(field);
  expect(message).toStartWith(field);
});

function refusalOf(wire: WireNetwork, ceiling: typeof SOME): unknown {
  try {
    return networkOf(wire, ceiling);
  } catch (error) {
    return error instanceof ApiError && error.code === "validation_error"
      ? [error.details?.["field"], error.message]
      : error;
  }
}
