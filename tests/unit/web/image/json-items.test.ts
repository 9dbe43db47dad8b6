import { describe, expect, test } from "bun:test";
import { JsonItems } from "../../../../src/web/image/json-items.ts";

/** Reads a text in pieces of some bytes. */
function read(text: string, size: number): { items: unknown[]; end: unknown } {
  const bytes = new TextEncoder().encode(text);
  const reader = new JsonItems<unknown>();
  const items: unknown[] = [];
  for (let at = 0; at < bytes.byteLength; at += size) items.push(...reader.read(bytes.subarray(at, at + size)));
  return { items, end: reader.end() };
}

const ITEMS = [
  { name: 'br{ack]et "quoted\\', ranges: [{ start: 1 }, { start: 2 }] },
  { name: "é🌳", nested: { deep: [[{}]] } },
  {},
];
const WHOLE = { path: "/a[,b]é", items: ITEMS, truncated_by: ["limit", "time"], count: 3 };

describe("items of an answer that arrives", () => {
  test("are the same in pieces of any size, and so is the rest", () => {
    const text = JSON.stringify(WHOLE);
    for (const size of [1, 2, 3, 7, 64, 10_000]) {
      expect(read(text, size)).toEqual({ items: ITEMS, end: { ...WHOLE, items: [] } });
    }
  });

  test("may be none", () => {
    expect(read('{"path":"/","items":[]}', 4)).toEqual({ items: [], end: { path: "/", items: [] } });
  });

  test("of an answer that broke off are no whole answer", () => {
    expect(() => read('{"path":"/","items":[{"a":1},{"b"', 8)).toThrow(SyntaxError);
    expect(() => read('{"path":"/","items":[{"a":1}', 8)).toThrow(SyntaxError);
    expect(() => read("", 8)).toThrow(SyntaxError);
  });

  test("are bounded", () => {
    expect(() => read(`{"items":[{"a":"${"x".repeat(2_000_000)}"}]}`, 65_536)).toThrow(RangeError);
  });
});
