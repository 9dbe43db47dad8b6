import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { BoundedMarks, MARKS_COUNT_MAX } from "../../../src/web/run/terminal/bounded-marks.ts";

const ACUTE = "\u0301";
const textOf = (text: string, pieceBytes = 4096): string => {
  const marks = new BoundedMarks();
  const bytes = new TextEncoder().encode(text);
  let all = "";
  for (let at = 0; at < bytes.byteLength; at += pieceBytes) all += marks.text(bytes.subarray(at, at + pieceBytes));
  return all;
};

test("a character keeps a bounded number of marks, in pieces of any size", () => {
  const text = `a${ACUTE.repeat(20_000)}b${ACUTE}c`;
  const bounded = `a${ACUTE.repeat(MARKS_COUNT_MAX)}b${ACUTE}c`;
  for (const pieceBytes of [1, 3, 1000, 4096, 100_000]) expect(textOf(text, pieceBytes)).toBe(bounded);
});

test("controls between marks are kept, and allow no more marks", () => {
  const text = `a${`${ACUTE}\u0007`.repeat(100)}`;
  expect(textOf(text, 7)).toBe(`a${`${ACUTE}\u0007`.repeat(MARKS_COUNT_MAX)}${"\u0007".repeat(100 - MARKS_COUNT_MAX)}`);
});

test("text of many scripts does not change", () => {
  const text = "plain \u001b[31mred\u001b[0m\r\n e\u0301\u0323 क्षि ཧྐྵྨླྺྼྻྂ ที่นี่ 👩‍👩‍👧‍👦 한글 \u1112\u1161\u11ab \ufeff日本 ￿";
  expect(textOf(text.repeat(50), 5)).toBe(text.repeat(50));
});

test("bounds all characters that xterm.js joins to the previous one", () => {
  const source = readFileSync("node_modules/@xterm/xterm/src/common/input/UnicodeV6.ts", "utf8");
  const ranges = Array.from(source.matchAll(/\[0x([0-9A-F]+), 0x([0-9A-F]+)\]/g), ([, first = "", last = ""]) => [
    Number.parseInt(first, 16),
    Number.parseInt(last, 16),
  ]);
  expect(ranges.length).toBeGreaterThan(140);
  for (const [first = 0, last = 0] of ranges) {
    for (let code = first; code <= last; code++) {
      const marks = `a${String.fromCodePoint(code).repeat(MARKS_COUNT_MAX)}`;
      expect([code, textOf(`${marks}${String.fromCodePoint(code)}`)]).toEqual([code, marks]);
    }
  }
});
