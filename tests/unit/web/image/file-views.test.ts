import { describe, expect, test } from "bun:test";
import { hexRow, offsetText, Parts, parseOffset } from "../../../../src/web/image/files/hex-rows.ts";
import { languageOf } from "../../../../src/web/image/files/language.ts";
import { pictureHeader } from "../../../../src/web/image/files/picture-header.ts";
import { longestLine, rowAt, rowOfLine, textRows, tokenSpans } from "../../../../src/web/image/files/text-rows.ts";
import { type EncodedPath, ROOT } from "../../../../src/web/image/paths.ts";
import { markedLine } from "../../../../src/web/image/search/marked-line.ts";
import { searchSteps } from "../../../../src/web/image/search/search-steps.ts";
import { GRAMMARS } from "../../../../src/web/worker/grammars.ts";
import { linesOf } from "../../../../src/web/worker/text-lines.ts";

const bytes = (...values: number[]) => Uint8Array.from(values);
const ascii = (text: string) => [...text].map((character) => character.charCodeAt(0));

describe("the language of a text", () => {
  test("is derived from its name, or else from its first line", () => {
    expect(languageOf("main.RS", "")).toBe("rust");
    expect(languageOf("Dockerfile.dev", "")).toBe("dockerfile");
    expect(languageOf("x.json", "#!/bin/sh")).toBe("json");
    expect(languageOf("run", "#!/usr/bin/env -S python3.11 -u")).toBe("python");
    expect(languageOf("run", "#! /bin/sh -e")).toBe("bash");
    expect(languageOf("run", "#!/usr/bin/env FOO=1 node")).toBe("javascript");
    expect(languageOf("notes.txt", "hello")).toBeNull();
    expect(languageOf("constructor", "#!constructor")).toBeNull();
    expect(languageOf("a.__proto__", "")).toBeNull();
  });

  test("always has a grammar", () => {
    const names = [
      "a.c",
      "a.h",
      "a.md",
      "a.yml",
      "a.html",
      "a.tsx",
      "Makefile",
      "fstab",
      "nginx.conf",
      "a.patch",
      "a.sql",
    ];
    for (const name of names) expect(Object.keys(GRAMMARS)).toContain(languageOf(name, "") ?? "none");
  });
});

describe("the header of a picture", () => {
  test("has the type and the size, for any name", () => {
    const png = bytes(
      0x89,
      ...ascii("PNG\r\n\x1a\n"),
      0,
      0,
      0,
      13,
      ...ascii("IHDR"),
      0,
      0,
      0xc3,
      0x50,
      0,
      0,
      0xc3,
      0x50,
    );
    expect(pictureHeader(png)).toEqual({ type: "image/png", width: 50_000, height: 50_000 });
    const gif = [...ascii("GIF89a"), 2, 1, 3, 0, 0, 0, 0, 0x2c, 0, 0, 0, 0, 2, 1, 3, 0];
    expect(pictureHeader(bytes(...gif))).toEqual({ type: "image/gif", width: 258, height: 3 });
    const vp8x = [...ascii("RIFF"), 0, 0, 0, 0, ...ascii("WEBPVP8X"), 10, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0x13, 0, 0];
    expect(pictureHeader(bytes(...vp8x))).toEqual({ type: "image/webp", width: 10, height: 20 });
    const bmp = [...ascii("BM"), ...Array(12).fill(0), 40, 0, 0, 0, 5, 0, 0, 0, 0xfd, 0xff, 0xff, 0xff];
    expect(pictureHeader(bytes(...bmp))).toEqual({ type: "image/bmp", width: 5, height: 3 });
  });

  test("of a JPEG is found behind other segments", () => {
    const segments = [0xff, 0xe0, 0, 4, 1, 2, 0xff, 0xff, 0xc4, 0, 2, 0xff, 0xc2, 0, 11, 8, 0, 7, 0, 9, 1, 1, 0x11, 0];
    expect(pictureHeader(bytes(0xff, 0xd8, ...segments))).toEqual({ type: "image/jpeg", width: 9, height: 7 });
    expect(pictureHeader(bytes(0xff, 0xd8, 0xff, 0xda, 0, 2, 0, 0, 0, 0, 0))).toBeNull();
    expect(pictureHeader(bytes(0xff, 0xd8, ...Array(100).fill(0)))).toBeNull();
  });

  test("of a JPEG is found behind markers without a length, which decoders skip", () => {
    const hidden = [0xff, 0xe1, 0, 4, 1, 2, 0xff, 0xc0, 0, 11, 8, 0x20, 0, 0x20, 0, 1, 1, 0x11, 0];
    for (const marker of [0x01, 0xd0, 0xd7]) {
      const jpeg = pictureHeader(bytes(0xff, 0xd8, 0xff, marker, ...hidden));
      expect(jpeg).toEqual({ type: "image/jpeg", width: 8192, height: 8192 });
    }
    for (const marker of [0x00, 0xd8]) expect(pictureHeader(bytes(0xff, 0xd8, 0xff, marker, ...hidden))).toBeNull();
  });

  test("of a GIF is as large as its first frame, behind other blocks", () => {
    const screen = [...ascii("GIF89a"), 1, 0, 1, 0, 0x80, 0, 0, 0, 0, 0, 255, 255, 255];
    const extensions = [0x21, 0xf9, 4, 0, 0, 0, 0, 0, 0x21, 0xfe, 2, 0x2c, 0x2c, 1, 0, 0];
    const frame = [0x2c, 1, 0, 2, 0, 0, 0x20, 0, 0x10];
    const gif = bytes(...screen, ...extensions, ...frame);
    expect(pictureHeader(gif)).toEqual({ type: "image/gif", width: 8193, height: 4098 });
    for (let length = 0; length < gif.byteLength; length += 1)
      expect(pictureHeader(gif.subarray(0, length))).toBeNull();
  });

  test("is missing in texts, SVG, half a header, and pictures without pixels", () => {
    expect(pictureHeader(bytes(...ascii('<svg xmlns="http://www.w3.org/2000/svg">')))).toBeNull();
    expect(pictureHeader(bytes(...ascii("GIF89a"), 0, 0, 0, 0))).toBeNull();
    const png = bytes(0x89, ...ascii("PNG\r\n\x1a\n"), 0, 0, 0, 13, ...ascii("IHDR"), 0, 0, 1, 0, 0, 0, 1, 0);
    for (let length = 0; length < png.byteLength; length += 1)
      expect(pictureHeader(png.subarray(0, length))).toBeNull();
  });
});

describe("rows of a text", () => {
  const lines = linesOf(new TextEncoder().encode("abcdef\n\n漢字漢字\n\tx\n"));

  test("are its lines, or are as wide as the view", () => {
    expect([...textRows(lines, null).lines]).toEqual([0, 1, 2, 3]);
    const wrapped = textRows(lines, 4);
    expect([...wrapped.lines]).toEqual([0, 0, 1, 2, 2, 3, 3]);
    expect([...wrapped.starts].map((start) => lines.text.slice(start, start + 1))).toEqual([
      "a",
      "e",
      "\n",
      "漢",
      "漢",
      "\t",
      "x",
    ]);
    expect(rowOfLine(wrapped, 2)).toBe(3);
    expect([0, 3, 4, 6, 7].map((position) => rowAt(wrapped, position))).toEqual([0, 0, 1, 1, 2]);
    expect(longestLine(lines)).toBe(9);
  });

  test("do not split a surrogate pair", () => {
    const trees = linesOf(new TextEncoder().encode("a🌳🌳🌳"));
    expect([...textRows(trees, 2).starts]).toEqual([0, 1, 3, 5]);
  });

  test("have the pieces of their tokens", () => {
    const tokens = { triples: Uint32Array.of(1, 3, 2, 4, 6, 1), firsts: Uint32Array.of(0, 2, 2, 2, 2) };
    expect(tokenSpans(lines.text, tokens, 0, 0, 6).map(({ text, kind }) => [text, kind])).toEqual([
      ["a", 0],
      ["bc", 2],
      ["d", 0],
      ["ef", 1],
    ]);
    const text = "a+".repeat(2000);
    const triples = Uint32Array.from({ length: 6000 }, (_, index) =>
      index % 3 === 2 ? 1 : 2 * Math.floor(index / 3) + (index % 3),
    );
    const many = tokenSpans(text, { triples, firsts: Uint32Array.of(0, 2000) }, 0, 0, text.length);
    expect(many.length).toBeLessThan(300);
    expect(many.map((piece) => piece.text).join("")).toBe(text);
    expect(tokenSpans(lines.text, tokens, 0, 2, 5).map(({ text }) => text)).toEqual(["c", "d", "e"]);
  });
});

describe("bytes", () => {
  test("are shown with their offset, in hexadecimal and as characters", () => {
    expect(hexRow(bytes(0, 65, 255))).toEqual({ hex: ["00", "41", "ff"], characters: "·A·" });
    expect(offsetText(0x1234, 100)).toBe("0000 1234");
    expect(offsetText(0x1_0000_0000, 2 ** 33)).toBe("0001 0000 0000");
  });

  test("are found by an offset in any usual form", () => {
    const forms = ["0x10", "10h", "16", " 1,000 ", "0xZZ", "-1", "", "1e3"];
    expect(forms.map(parseOffset)).toEqual([16, 16, 16, 1000, null, null, null, null]);
  });

  test("are cached as far as there is room, the newest first", () => {
    const parts = new Parts(2);
    parts.set(1, bytes(1));
    parts.set(2, bytes(2));
    expect(parts.get(1)).toEqual(bytes(1));
    parts.set(3, bytes(3));
    expect([parts.get(1), parts.get(2), parts.get(3)]).toEqual([bytes(1), undefined, bytes(3)]);
  });
});

describe("a search", () => {
  test("visits entry by entry, and many entries or the path of a glob in one step", () => {
    const items = [
      { name: "bin", type: "symlink" },
      { name: "etc", type: "directory" },
      ...Array.from({ length: 20 }, (_, index) => ({ name: `f${index}`, type: "file" })),
      { name: "usr", type: "directory" },
    ] as Parameters<typeof searchSteps>[1];
    const steps = searchSteps({ path: ROOT, glob: "" }, items);
    expect(steps.map((paths) => paths.length)).toEqual([1, 16, 4, 1]);
    expect(steps[0]).toEqual(["/etc" as EncodedPath]);
    expect(searchSteps({ path: ROOT, glob: "etc/*" }, items)).toEqual([[ROOT]]);
    expect(searchSteps({ path: ROOT, glob: "" }, null)).toEqual([[ROOT]]);
  });

  test("marks matches by their bytes, and shows the text around them", () => {
    const pieces = (line: Parameters<typeof markedLine>[0]) =>
      markedLine(line).pieces.map(({ text, isMatch }) => (isMatch ? `[${text}]` : text));
    expect(pieces({ text: "é needle ü", ranges: [{ start: 3, end: 9 }] })).toEqual(["é ", "[needle]", " ü"]);
    expect(pieces({ text: "a", ranges: [] })).toEqual(["a"]);
    const far = markedLine({
      text: `${"x".repeat(2000)}needle${"y".repeat(2000)}`,
      ranges: [{ start: 2000, end: 2006 }],
    });
    expect([far.isCutBefore, far.isCutAfter]).toEqual([true, true]);
    expect(far.pieces.map(({ text }) => text).join("").length).toBe(480);
    const raw = { text: "a\ufffdb", text_base64: Buffer.from([97, 255, 98]).toString("base64") };
    expect(pieces({ ...raw, ranges: [{ start: 2, end: 3 }] })).toEqual(["a\ufffd", "[b]"]);
  });
});
