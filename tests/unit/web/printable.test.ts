import { describe, expect, test } from "bun:test";
import { escaped, hasHidden, isBlank, PARTS_MAX, partsOf, printable } from "../../../src/web/text/printable.ts";

describe("text of a guest", () => {
  test("does not change when all of it is visible", () => {
    for (const text of ["app.py", "größe 你好 שלום 👩🏽", "", "a b", "⚠\ufe0f ❤\ufe0f", "<script>alert(1)</script>"]) {
      expect(printable(text)).toBe(text);
    }
  });

  test("shows controls, line ends and escapes", () => {
    expect(printable("a\nb\tc\rd\0e\x1b[31mf\x7f\x9b")).toBe("a\\nb\\tc\\rd\\x00e\\x1b[31mf\\x7f\\x9b");
  });

  test("shows characters that reorder or hide the text around them", () => {
    expect(printable("photo\u202egnp.exe")).toBe("photo\\u202egnp.exe");
    expect(printable("a\u200bb\u2066c\u2069\ufeffd\u00ade")).toBe("a\\u200bb\\u2066c\\u2069\\ufeffd\\xade");
    expect(printable("\u{e0041}")).toBe("\\ue0041");
  });

  test("shows characters that make two names look equal", () => {
    for (const hidden of [0x34f, 0x115f, 0x17b4, 0x180b, 0x3164, 0xfe00, 0xfe0f, 0xffa0, 0x1d173, 0xe0100, 0xe01ef]) {
      const name = `app${String.fromCodePoint(hidden)}.py`;
      expect(printable(name)).toBe(`app\\u${hidden.toString(16).padStart(4, "0")}.py`);
      expect(hasHidden(name)).toBe(true);
    }
    expect(hasHidden("a\tb ⚠\ufe0f")).toBe(false);
  });

  test("is blank only if none of its characters has a shape", () => {
    for (const blank of [" ", "\u00a0\u3000", "\u2003", "\u2800"]) expect(isBlank(blank)).toBe(true);
    for (const text of ["", " a", "\u200b", "\t"]) expect(isBlank(text)).toBe(false);
    expect(escaped(" \u00a0\u2003")).toBe("\\x20\\xa0\\u2003");
  });

  test("shows halves of surrogate pairs, and does not change pairs", () => {
    expect(printable("\ud800x\udc00")).toBe("\\ud800x\\udc00");
    expect(printable("😀")).toBe("😀");
  });

  test("is split into labelled parts without loss", () => {
    expect(partsOf("a\u202eb")).toEqual([
      { text: "a", isEscape: false },
      { text: "\\u202e", isEscape: true },
      { text: "b", isEscape: false },
    ]);
    expect(partsOf("")).toEqual([]);
  });

  test("has a bounded number of parts, even with many invisible characters", () => {
    const text = "a\u200b\t".repeat(1000);
    for (const max of [1, 2, 10, PARTS_MAX]) {
      const parts = partsOf(text, max);
      expect(parts.length).toBeLessThanOrEqual(Math.max(1, max));
      const whole = parts.map((part) => part.text.replaceAll("\t", "\\t")).join("");
      expect(whole).toBe("a\\u200b\\t".repeat(1000));
    }
    expect(partsOf(text)).toEqual(partsOf(text, PARTS_MAX));
    expect(partsOf("\ta\tb", 1)).toEqual([{ text: "\ta\tb", isEscape: false }]);
  });
});
