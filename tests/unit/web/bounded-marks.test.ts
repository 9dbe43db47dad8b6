import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { BoundedMarks, MARKS_COUNT_MAX } from "../../../src/web/run/terminal/bounded-marks.ts";

const ACUTE = "\u0301";
const shown = (text: string, pieceBytes = 4096): string => {
  const marks = new BoundedMarks();
  const bytes = new TextEncoder().encode(text);
  let all = "";
  for (let at = 0; at < bytes.byteLength; at += pieceBytes) all += marks.text(bytes.subarray(at, at + pieceBytes));
  return all;
};

test("a character keeps so many marks, however its bytes arrive", () => {
  const text = `a${ACUTE.repeat(20_000)}b${ACUTE}c`;
  const bounded = `a${ACUTE.repeat(MARKS_COUNT_MAX)}b${ACUTE}c`;
  for (const pieceBytes of [1, 3, 1000, 4096, 100_000]) expect(shown(text, pieceBytes)).toBe(bounded);
});

test("controls between marks are kept, and give no room for more", () => {
  const text = `a${`${ACUTE}\u0007`.repeat(100)}`;
  expect(shown(text, 7)).toBe(`a${`${ACUTE}\u0007`.repeat(MARKS_COUNT_MAX)}${"\u0007".repeat(100 - MARKS_COUNT_MAX)}`);
});

test("text of many scripts stays as it is", () => {
  const text = "plain \u001b[31mred\u001b[0m\r\n e\u0301\u0323 क्षि ཧྐྵྨླྺྼྻྂ ที่นี่ 👩‍👩‍👧‍👦 한글 \u1112\u1161\u11ab \ufeff日本 ￿";
  expect(shown(text.repeat(50), 5)).toBe(text.repeat(50));
});

test("all characters are bounded that xterm.js joins to the one before", () => {
  const source = readFileSync("node_modules/@xterm/xterm/src/common/input/UnicodeV6.ts", "utf8");
  const ranges = Array.from(source.matchAll(/\[0x([0-9A-F]+), 0x([0-9A-F]+)\]/g), ([, first = "", last = ""]) => [
    Number.parseInt(first, 16),
    Number.parseInt(last, 16),
  ]);
  expect(ranges.length).toBeGreaterThan(140);
  for (const [first = 0, last = 0] of ranges) {
    for (let code = first; code <= last; code++) {
      const marks = `a${String.fromCodePoint(code).repeat(MARKS_COUNT_MAX)}`;
      expect([code, shown(`${marks}${String.fromCodePoint(code)}`)]).toEqual([code, marks]);
    }
  }
});
