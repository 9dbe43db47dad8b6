import { describe, expect, test } from "bun:test";
import type { TextReply } from "../../../src/web/worker/messages.ts";
import { lineOf, readText } from "../../../src/web/worker/text-lines.ts";

const bytesOf = (content: string | number[]): ArrayBuffer =>
  (typeof content === "string" ? new TextEncoder().encode(content) : Uint8Array.from(content)).slice().buffer;
const read = (content: string | number[], isLast = true) =>
  readText({ bytes: bytesOf(content), encoding: null, isLast });
const linesIn = (reply: TextReply): string[] =>
  Array.from({ length: reply.starts.length - 1 }, (_, index) => lineOf(reply, index));

describe("lines of a text", () => {
  test("end at line feeds, or at the end of the text", () => {
    expect(linesIn(read("a\nbc\n\nd"))).toEqual(["a", "bc", "", "d"]);
    expect(linesIn(read("a\n"))).toEqual(["a"]);
    expect(linesIn(read("\n"))).toEqual([""]);
    expect(linesIn(read(""))).toEqual([]);
  });

  test("have the offsets of their bytes", () => {
    const reply = read("é\nab\r\n\nz");
    expect(linesIn(reply)).toEqual(["é", "ab", "", "z"]);
    expect([...reply.byteStarts]).toEqual([0, 3, 7, 8]);
    expect(reply.crlfCount).toBe(1);
  });

  test("count bytes that are not UTF-8, and not the replacement characters of the text itself", () => {
    const reply = read([0x63, 0xe9, 0x0a, 0xef, 0xbf, 0xbd, 0xff]);
    expect(linesIn(reply)).toEqual(["c\ufffd", "\ufffd\ufffd"]);
    expect(reply.replacedCount).toBe(2);
    expect(read("plain").replacedCount).toBe(0);
  });

  test("are decoded as UTF-16 after its byte order mark", () => {
    const little = read([0xff, 0xfe, 0x61, 0x00, 0x0a, 0x00, 0xe9, 0x00]);
    expect([little.encoding, linesIn(little)]).toEqual(["utf-16le", ["a", "é"]]);
    const big = read([0xfe, 0xff, 0x00, 0x61, 0x00, 0x0a, 0x00, 0xe9]);
    expect([big.encoding, linesIn(big)]).toEqual(["utf-16be", ["a", "é"]]);
    expect(linesIn(read([0xef, 0xbb, 0xbf, 0x61]))).toEqual(["a"]);
  });
});

describe("a part of a file", () => {
  test("ends after its last complete line", () => {
    const reply = read("one\ntwo\nthr", false);
    expect([linesIn(reply), reply.usedBytes, reply.isCut]).toEqual([["one", "two"], 8, false]);
    const wide = read([0xff, 0xfe, 0x61, 0x00, 0x0a, 0x00, 0x62], false);
    expect([linesIn(wide), wide.usedBytes]).toEqual([["a"], 6]);
  });

  test("without a line feed is cut between characters", () => {
    const reply = read([0x61, 0xf0, 0x9f, 0x8c], false);
    expect([linesIn(reply), reply.usedBytes, reply.isCut]).toEqual([["a"], 1, true]);
    expect(read([0x61, 0xf0, 0x9f, 0x8c, 0xb3], false).usedBytes).toBe(5);
    expect(read([0xff, 0xff, 0xff, 0xff], false).usedBytes).toBeGreaterThan(0);
    expect(read("xyz", false)).toMatchObject({ usedBytes: 3, isCut: true });
  });

  test("can be reassembled from pieces of any size", () => {
    const whole = new TextEncoder().encode("first\nsécond line\n\n🌳 tree\nlast");
    for (const size of [7, 9, 16, 64]) {
      const lines: string[] = [];
      for (let at = 0, open = false; at < whole.byteLength; ) {
        const bytes = whole.slice(at, at + size).buffer;
        const reply = readText({ bytes, encoding: "utf-8", isLast: at + size >= whole.byteLength });
        const [first = "", ...others] = linesIn(reply);
        if (open) lines.push(`${lines.pop()}${first}`, ...others);
        else lines.push(first, ...others);
        open = reply.isCut;
        at += reply.usedBytes;
      }
      expect(lines).toEqual(["first", "sécond line", "", "🌳 tree", "last"]);
    }
  });
});
