import { expect, test } from "bun:test";
import { Calls } from "../../../src/api/mcp/calls.ts";
import { passedOn } from "../../../src/api/mcp/message.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import type { AccountId } from "../../../src/domain/ids.ts";

const META = {
  progressToken: "t",
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": { name: "n", version: "1", icons: [{ src: "x" }] },
  "io.modelcontextprotocol/clientCapabilities": { sampling: {}, experimental: { a: { b: {} } } },
  other: { a: [] },
};
const PASSED_META = {
  ...META,
  "io.modelcontextprotocol/clientInfo": { name: "n", version: "1" },
  "io.modelcontextprotocol/clientCapabilities": {},
  other: undefined,
};
const sent = (method: string, params: Record<string, unknown>) =>
  passedOn({ jsonrpc: "2.0", id: 1, method, params }).message.params;

test("passes only the fields of the method on to the library", () => {
  const many = Object.fromEntries(Array.from({ length: 1000 }, (_, index) => [`n${index}`, {}]));
  expect(sent("tools/call", { ...many, name: "run", arguments: many, task: {}, _meta: META })).toEqual({
    name: "run",
    _meta: PASSED_META,
  });
  const client = { name: "c", version: "1", title: "t", ...many };
  expect(sent("initialize", { protocolVersion: "2025-11-25", capabilities: many, clientInfo: client })).toEqual({
    ...{ protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "c", version: "1" } },
  });
  expect(sent("resources/read", { ...many, uri: "u" })).toEqual({ uri: "u" });
  expect(sent("ping", many)).toEqual({});
  expect(sent("__proto__", many)).toEqual({});
  expect(sent("constructor", { name: "x" })).toEqual({});
});

test("a value of the wrong type keeps its type and becomes empty", () => {
  expect(sent("tools/call", { name: { a: 1 }, _meta: [[]] })).toEqual({ name: {}, _meta: [] });
  expect(sent("resources/read", { uri: [1], _meta: 7 })).toEqual({ uri: [], _meta: 7 });
  expect(passedOn({ jsonrpc: "2.0", id: { a: 1 }, method: "ping" }).message).toEqual({
    ...{ jsonrpc: "2.0", id: {}, method: "ping" },
  });
});

test("the input of a tool is returned once", () => {
  const input = { image: "x" };
  const { takeInput } = passedOn({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { arguments: input } });
  expect(takeInput()).toBe(input);
  expect(takeInput()).toEqual({});
  expect(passedOn({ jsonrpc: "2.0", method: "ping", params: { arguments: input } }).takeInput()).toEqual({});
});

test.each([
  ["id", { id: "x".repeat(257) }],
  ["params._meta.progressToken", { id: 1, params: { _meta: { progressToken: "x".repeat(257) } } }],
])("%s has at most 256 characters", (field, fields) => {
  let refused: unknown = null;
  try {
    passedOn({ jsonrpc: "2.0", method: "tools/list", ...fields });
  } catch (error) {
    refused = error;
  }
  expect(refused).toBeInstanceOf(ApiError);
  expect((refused as ApiError).details["field"]).toBe(field);
});

test("accounts that use all their requests leave some to others", () => {
  const calls = new Calls(new Accounts());
  const begun = (account: string) => {
    for (let count = 0; ; count++) {
      try {
        calls.begin({ accountId: account as AccountId, session: null, id: count });
      } catch (error) {
        expect(error).toMatchObject({ code: "too_many_requests" });
        return count;
      }
    }
  };
  expect(["a", "b", "c", "d", "e", "f"].map(begun)).toEqual([256, 256, 256, 128, 64, 32]);
});
