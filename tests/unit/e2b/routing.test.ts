import { describe, expect, test } from "bun:test";
import { isEnvdPath, placeOf } from "../../../src/api/e2b/routing.ts";

const ID = "0197a1d05a5e70008000" + "3c6e0b8a9c15";
const UUID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";

function place(host: string, target = "/", fields: Readonly<Record<string, string>> = {}) {
  const head = {
    method: "GET",
    target,
    version: 1 as const,
    fields: [["Host", host] as const, ...Object.entries(fields)],
  };
  return placeOf({ host, head });
}

const API = { kind: "api" } as const;
const NO_SANDBOX = { kind: "envd", sandbox: null } as const;
const ENVD = { kind: "envd", sandbox: ID } as const;
const port = (number: number, sandbox: string = ID) => ({ kind: "port", sandbox, port: number }) as const;
const NAMED = { "E2b-Sandbox-Id": ID };
const SDK = { ...NAMED, "E2b-Sandbox-Port": "49983" };
const OTHER = { ...NAMED, "E2b-Sandbox-Port": "3000" };

describe("a request goes", () => {
  test.each([
    // The Host decides first.
    [`3000-${ID}.box.example`, "/", {}, port(3000)],
    [`3000-${ID}.box.example:8443`, "/files", SDK, port(3000)],
    [`3000-${ID}.localhost`, "/sandboxes", { "X-API-Key": "k" }, port(3000)],
    [`3000-${UUID}.box.example`, "/", {}, port(3000, UUID)],
    [`3000-${ID}`, "/", {}, port(3000)],
    [`3000-${ID}:8643`, "/", {}, port(3000)],
    [`0-${ID}.a`, "/", {}, port(0)],
    [`99999-${ID}.a`, "/", {}, port(99_999)],
    [`49983-${ID}.box.example`, "/process.Process/Start", {}, ENVD],
    [`49983-${ID}.box.example`, "/sandboxes", { "X-API-Key": "k" }, ENVD],
    // Another sandbox in the fields does not change what the Host names.
    [`49983-${ID}.box.example`, "/health", { "E2b-Sandbox-Id": "0".repeat(32) }, ENVD],
    // Hosts that name no port.
    ["api.box.example", "/sandboxes", {}, API],
    ["sandbox.box.example", "/files", SDK, ENVD],
    ["127.0.0.1:8643", "/sandboxes", {}, API],
    ["[::1]:8643", "/health", {}, NO_SANDBOX],
    ["3-node.example", "/sandboxes", {}, API],
    [`3000-x.${ID}.example`, "/sandboxes", {}, API],
    [`a.3000-${ID}.example`, "/sandboxes", {}, API],
    [`123456-${ID}.example`, "/sandboxes", {}, API],
    [`-${ID}.example`, "/sandboxes", {}, API],
    // Then the path.
    ["a", "/process.Process/List", SDK, ENVD],
    ["a", "/filesystem.Filesystem/Stat?x=/sandboxes", NAMED, ENVD],
    ["a", "/files?path=a&signature=v1_x", {}, NO_SANDBOX],
    ["a", "/files/compose", SDK, ENVD],
    ["a", "/envs", SDK, ENVD],
    ["a", "/metrics", {}, NO_SANDBOX],
    ["a", "/health", SDK, ENVD],
    ["a", "/sandboxes/metrics", SDK, API],
    ["a", "/sandboxes/x?y=/files", {}, API],
    ["a", "/FILES", {}, API],
    ["a", "//files", {}, API],
    ["a", "/files/", {}, API],
    ["a", "/%66iles", {}, API],
    // Releases of 2.20 send the fields of the agent with calls of the API.
    ["a", `/sandboxes/${ID}/connect`, { ...SDK, "X-API-Key": "k" }, API],
    ["a", `/sandboxes/${ID}/connect`, { ...OTHER, "x-api-key": "k" }, API],
    // Then the fields that name another port.
    ["a", "/anything", OTHER, port(3000)],
    ["a", "/files", OTHER, port(3000)],
    ["a", "/files", { ...OTHER, "X-API-Key": "k" }, API],
    ["a", "/", { ...NAMED, "E2b-Sandbox-Port": "x" }, port(0)],
    ["a", "/files", { "E2b-Sandbox-Port": "3000" }, NO_SANDBOX],
    ["a", "/files", { "E2b-Sandbox-Id": "" }, NO_SANDBOX],
  ] as const)("by %s %s %j", (host, target, fields, expected) => {
    expect(place(host, target, fields)).toEqual(expected);
  });
});

test("the paths of the agent are exact", () => {
  expect(["/process.Process/", "/files", "/health", "/envs", "/metrics"].every(isEnvdPath)).toBe(true);
  expect(["/process.Process", "/filesx", "/health/", "/init", "/freeze", ""].some(isEnvdPath)).toBe(false);
});
