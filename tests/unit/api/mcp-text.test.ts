import { describe, expect, test } from "bun:test";
import { rangeOf } from "../../../src/api/mcp/output.ts";
import {
  cutLine,
  fileText,
  HeadAndTail,
  isBinary,
  outputText,
  shownBytes,
  shownName,
  shownSeconds,
} from "../../../src/api/mcp/text.ts";

const bytes = (text: string): Uint8Array => Buffer.from(text, "utf8");

/** A content in chunks that share the same memory one after the other, as when a long output is read. */
function* reusedChunks(content: string, chunkBytes: number): Generator<Buffer, void, undefined> {
  const all = Buffer.from(content, "utf8");
  const memory = Buffer.alloc(chunkBytes);
  for (let at = 0; at < all.byteLength; at += chunkBytes) {
    yield memory.subarray(0, all.copy(memory, 0, at, at + chunkBytes));
  }
}

describe("output of a guest is shown as harmless text", () => {
  test.each([
    ["colours", "\x1b[1;31mred\x1b[0m", "red"],
    ["titles and links", "a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c", "abc"],
    ["an unterminated sequence hides nothing", "a\x1b]0;all the rest\nis here", "a0;all the rest\nis here"],
    ["moves of the cursor", "one\x1b[2J\x1b[Htwo\x1b[?25l", "onetwo"],
    ["bells, backspaces and NUL", "a\x07b\x08c\0d", "abcd"],
    ["characters of the upper control set", "a\u009b31mb\u0085c", "a31mbc"],
    ["reordered text", "a\u202eb\u2066c\u200fd", "abcd"],
    ["text without a shape", `a\u200b\u2060b${String.fromCodePoint(0xe0049, 0xe0067)}c`, "abc"],
    ["bytes in selectors of variants", `a${String.fromCodePoint(0xfe00, 0xe0100, 0xe01ef)}b\u3164c\ufe0f`, "abc"],
    ["an unchanged emoji", "⚠\ufe0f done", "⚠\ufe0f done"],
    ["a progress bar shows its last state", "10%\r50%\r100%\ndone\r\n", "100%\ndone\n"],
    ["tabs and line ends", "a\tb\n\nc", "a\tb\n\nc"],
    ["an ESC at the end", "a\x1b", "a"],
  ])("%s", (_case, written, expected) => {
    expect(outputText(bytes(written))).toBe(expected);
  });

  test("bytes that are not UTF-8 are marked", () => {
    expect(outputText(Uint8Array.of(0x61, 0xff, 0x62))).toBe("a\ufffdb");
  });

  test("lines of a file are not read as overwritten, and hidden characters are counted", () => {
    expect(fileText(bytes("a\r\nb\r\n"))).toEqual({ text: "a\nb\n", hiddenCount: 0 });
    expect(fileText(bytes("a\rb\u202ec"))).toEqual({ text: "abc", hiddenCount: 2 });
  });

  test("a name is one line", () => {
    expect(shownName("a\nb\tc\x1b[31md\u202e")).toBe("a\\u{a}b\\u{9}c\\u{1b}[31md\\u{202e}");
  });

  test("many unterminated sequences are searched once", () => {
    expect(outputText(bytes("\x1b]".repeat(500_000)))).toBe("");
  });
});

test("binary content is distinguished from text", () => {
  expect(isBinary(bytes("plain\n"))).toBe(false);
  expect(isBinary(Buffer.from("grüße\n", "latin1"))).toBe(false);
  expect(isBinary(bytes("a\0b"))).toBe(true);
  expect(isBinary(Uint8Array.from({ length: 64 }, (_, at) => 0x80 + at))).toBe(true);
});

describe("a long content keeps its beginning and its end", () => {
  const kept = (content: string, bytesMax: number, chunkBytes: number) => {
    const parts = new HeadAndTail(bytesMax);
    for (const chunk of reusedChunks(content, chunkBytes)) parts.push(chunk);
    const { head, tail, omittedBytes } = parts.parts();
    const text = (part: Uint8Array) => Buffer.from(part).toString("utf8");
    return { head: text(head), tail: text(tail), omittedBytes, totalBytes: parts.totalBytes };
  };
  const lines = (count: number) => Array.from({ length: count }, (_, line) => `line ${line}\n`).join("");

  test.each([1, 7, 64, 100_000])("in chunks of %d bytes", (chunkBytes) => {
    const all = lines(10_000);
    const { head, tail, omittedBytes, totalBytes } = kept(all, 300, chunkBytes);
    expect(totalBytes).toBe(all.length);
    expect(all.startsWith(head)).toBe(true);
    expect(all.endsWith(tail)).toBe(true);
    expect(head).toMatch(/^line 0\n[\s\S]*\n$/);
    expect(tail).toMatch(/^line \d+\n[\s\S]*line 9999\n$/);
    expect(head.length + tail.length + omittedBytes).toBe(totalBytes);
    expect(head.length + tail.length).toBeLessThanOrEqual(300);
  });

  test("a short content is complete", () => {
    expect(kept("short", 300, 2)).toEqual({ head: "short", tail: "", omittedBytes: 0, totalBytes: 5 });
    const exact = "x".repeat(300);
    expect(kept(exact, 300, 300)).toEqual({ head: exact, tail: "", omittedBytes: 0, totalBytes: 300 });
  });

  test("a line without an end is cut between characters", () => {
    const { head, tail, omittedBytes, totalBytes } = kept("ü".repeat(10_000), 301, 997);
    expect(head).toMatch(/^ü+$/);
    expect(tail).toMatch(/^ü+$/);
    expect(bytes(head + tail).byteLength + omittedBytes).toBe(totalBytes);
  });
});

describe("a range of a content in chunks", () => {
  const content = Array.from({ length: 1000 }, (_, line) => `line ${line}\n`).join("");
  const read = async (offset: number, length: number, chunkBytes: number) => {
    const chunks = (async function* () {
      yield* reusedChunks(content, chunkBytes);
    })();
    const { bytes: range, start, totalBytes } = await rangeOf(chunks, { offset, length });
    expect(totalBytes).toBe(content.length);
    return { text: Buffer.from(range).toString("utf8"), start };
  };

  test.each([1, 7, 64, 100_000])("of %d bytes", async (chunkBytes) => {
    expect(await read(0, 500, chunkBytes)).toEqual({ text: content.slice(0, 500), start: 0 });
    expect(await read(5001, 300, chunkBytes)).toEqual({ text: content.slice(5001, 5301), start: 5001 });
    expect(await read(-300, 200, chunkBytes)).toEqual({ text: content.slice(-300, -100), start: content.length - 300 });
    expect(await read(-100_000, 100, chunkBytes)).toEqual({ text: content.slice(0, 100), start: 0 });
    expect(await read(100_000, 100, chunkBytes)).toEqual({ text: "", start: content.length });
  });
});

test("figures are readable", () => {
  expect([shownBytes(1), shownBytes(1_234_567)]).toEqual(["1 byte", "1,234,567 bytes"]);
  expect([shownSeconds(420), shownSeconds(12_400), shownSeconds(185_000)]).toEqual(["0.4 s", "12 s", "3 min 5 s"]);
  expect(cutLine("abcdef", 3)).toBe("abc… (+3 characters)");
  expect(cutLine("ab😀cd", 3)).toBe("ab… (+4 characters)");
});
