import { describe, expect, spyOn, test } from "bun:test";
import type { OperationEvent, OutputEvent } from "../../../../src/client/types.ts";
import { linesWith, placesOf } from "../../../../src/web/run/output/find.ts";
import { lineSpans } from "../../../../src/web/run/output/line-spans.ts";
import { LINE_CHARACTERS_MAX } from "../../../../src/web/run/output/line-writer.ts";
import {
  KEPT_CHARACTERS_MAX,
  KEPT_LINES_MAX,
  linesBefore,
  OutputBuffer,
} from "../../../../src/web/run/output/output-buffer.ts";
import { classesOf, colorsOf, PLAIN_STYLE, styleAfter } from "../../../../src/web/run/output/sgr.ts";

let id = 0;
const output = (content: string, type: "stdout" | "stderr" = "stdout"): OutputEvent => ({
  ...{ id: ++id, time: "2026-11-20T10:30:00.123456789Z", spid: 1, type, data: { content, encoding: "ascii" } },
});
const bytes = (content: Uint8Array): OutputEvent => ({
  ...output(""),
  data: { content: content.toBase64(), encoding: "base64" },
});

/** The lines of output that arrives in pieces, each as an event. */
function linesOf(...contents: string[]): string[] {
  const buffer = new OutputBuffer();
  for (const content of contents) buffer.add(output(content));
  return buffer.lines().map(({ text }) => text);
}

/** The pieces of the only line. */
function drawn(...contents: string[]): [string, string][] {
  const buffer = new OutputBuffer();
  for (const content of contents) buffer.add(output(content));
  const [line] = buffer.lines();
  if (line === undefined) throw new Error("no line");
  return lineSpans(line.text, line.spans, []).map(({ text, style }) => [text, classesOf(style)]);
}

describe("lines", () => {
  test("end where the program ends them, not where events end", () => {
    expect(linesOf("one\ntwo\n\nfo", "ur\nlast")).toEqual(["one", "two", "", "four", "last"]);
    expect(linesOf("a\r\nb\r", "\nc\r\n")).toEqual(["a", "b", "c"]);
    expect(linesOf("")).toEqual([]);
  });

  test("of both streams are separate, in the order of their beginnings", () => {
    const buffer = new OutputBuffer();
    buffer.add(output("out "));
    expect(buffer.hasErrors).toBe(false);
    buffer.add(output("err\n", "stderr"));
    buffer.add(output("continued\nnext\n"));
    expect(buffer.hasErrors).toBe(true);
    expect(buffer.lines().map(({ stream, text }) => `${stream}: ${text}`)).toEqual([
      "stdout: out continued",
      "stderr: err",
      "stdout: next",
    ]);
  });

  test("have the time and the number of the event in which they began", () => {
    const buffer = new OutputBuffer();
    const first = output("a");
    buffer.add(first);
    buffer.add(output("b\nc\n"));
    expect(buffer.lines().map(({ event }) => event)).toEqual([first.id, first.id + 1]);
    expect(buffer.lines()[0]?.time).toBe(first.time);
  });

  test("of bytes that two events share are decoded as one text", () => {
    const buffer = new OutputBuffer();
    const euro = new TextEncoder().encode("€ ü");
    buffer.add(bytes(euro.subarray(0, 1)));
    buffer.add(bytes(euro.subarray(1)));
    buffer.add(bytes(Uint8Array.of(0xe2)));
    buffer.add(output("x"));
    expect(buffer.lines().map(({ text }) => text)).toEqual(["€ ü\ufffdx"]);
  });

  test("of 1 MiB are cut, with the number of missing characters", () => {
    const buffer = new OutputBuffer();
    for (let count = 0; count < 16; count += 1) buffer.add(output("x".repeat(65_536)));
    buffer.add(output(`\n${"y".repeat(5000)}\n`));
    const cut = buffer.lines().map(({ text, cutCharacters }) => [text.length, cutCharacters]);
    expect(cut).toEqual([
      [LINE_CHARACTERS_MAX, 1_048_576 - LINE_CHARACTERS_MAX],
      [LINE_CHARACTERS_MAX, 5000 - LINE_CHARACTERS_MAX],
    ]);
  });

  test("are bounded in number and size, and the oldest are dropped", () => {
    const many = new OutputBuffer();
    for (let count = 0; count < 30; count += 1) many.add(output("x\n".repeat(1000)));
    expect(many.lines()).toHaveLength(KEPT_LINES_MAX);
    expect(many.droppedCount).toBe(20_000);
    expect(many.lines()[0]?.number).toBe(20_000);
    const long = new OutputBuffer();
    for (let count = 0; count < 3000; count += 1) long.add(output(`${"z".repeat(4000)}\n`));
    const kept = long.lines();
    expect(kept.reduce((sum, { text }) => sum + text.length, 0)).toBeLessThanOrEqual(KEPT_CHARACTERS_MAX);
    expect(kept.length).toBeGreaterThan(1000);
    expect(kept.at(-1)?.number).toBe(2999);
  });

  test("of one stream that grow after they were dropped do not count", () => {
    const buffer = new OutputBuffer();
    for (let count = 0; count < 1000; count += 1) {
      buffer.add(output("begun", "stderr"));
      buffer.add(output("x\n".repeat(KEPT_LINES_MAX)));
      buffer.add(output(`${"y".repeat(LINE_CHARACTERS_MAX)}\n`, "stderr"));
    }
    expect(buffer.lines()).toHaveLength(KEPT_LINES_MAX);
  });

  test("before the visible lines are neither missing nor repeated, wherever events end", () => {
    const events = [0, 1, 2].map((part) => {
      const lines = Array.from({ length: 4000 }, (_, line) => `${part * 4000 + line}\n`).join("");
      return output(lines);
    });
    const [live, earlier] = [new OutputBuffer(), new OutputBuffer(2)];
    for (const event of events) live.add(event);
    const visible = live.lines();
    expect(visible[0]?.text).toBe("2000");
    // The first event is that in which the first visible line began.
    for (const event of events.slice(0, 1)) earlier.add(event);
    const before = linesBefore(earlier.lines(), visible);
    expect([before.length, before[0]?.text, before.at(-1)?.text]).toEqual([2000, "0", "1999"]);
    expect(linesBefore([], visible)).toEqual([]);
  });

  test("whose style changes at every character use no more memory than others", () => {
    const buffer = new OutputBuffer();
    for (let count = 0; count < 1000; count += 1) buffer.add(output(`${"\u001b[1ma\u001b[0mb".repeat(1000)}\n`));
    const spans = buffer.lines().map((line) => line.spans?.length ?? 0);
    expect(Math.max(...spans)).toBe(256);
    expect(spans.reduce((sum, count) => sum + count, 0)).toBeLessThan(KEPT_CHARACTERS_MAX / 16);
  });

  test("mark where output is missing", () => {
    const buffer = new OutputBuffer();
    const data = { stream: "stderr", bytes_emitted: 10, bytes_dropped: 90 };
    buffer.add({ ...output(""), type: "truncated", data } as unknown as OperationEvent);
    expect(buffer.lines()[0]).toMatchObject({
      stream: "mark",
      text: expect.stringContaining("90 more bytes of stderr"),
    });
  });
});

describe("a line that is written over", () => {
  test("shows what a terminal would show", () => {
    expect(linesOf("10%\r50%\r100%\n")).toEqual(["100%"]);
    expect(linesOf("abcdef\rxy\n")).toEqual(["xycdef"]);
    expect(linesOf("abcdef\rxy\u001b[K\n")).toEqual(["xy"]);
    expect(linesOf("ab\b\bc\n")).toEqual(["cb"]);
    expect(linesOf("\u001b[5Gx\u001b[3D!\n")).toEqual(["  ! x"]);
    expect(linesOf("abc\u001b[2Kd\n")).toEqual(["   d"]);
    expect(linesOf("abc\u001b[2D\u001b[1K\n")).toEqual(["  c"]);
  });

  test("stays one line, however often it is overwritten", () => {
    const lines = linesOf(...Array.from({ length: 1000 }, (_, step) => `\r${step} of 1000`));
    expect(lines).toEqual(["999 of 1000"]);
  });
});

describe("escape sequences", () => {
  test("set styles, also when events split them", () => {
    expect(drawn("a\u001b[1;3", "1mred\u001b[0m plain")).toEqual([
      ["a", ""],
      ["red", "sgr-text-1 sgr-bold"],
      [" plain", ""],
    ]);
  });

  test("keep their style across the end of a line", () => {
    const buffer = new OutputBuffer();
    buffer.add(output("\u001b[32mone\ntwo\n"));
    expect(buffer.lines().map(({ spans }) => spans)).toEqual([
      [{ from: 0, style: styleAfter(PLAIN_STYLE, "32") }],
      [{ from: 0, style: styleAfter(PLAIN_STYLE, "32") }],
    ]);
  });

  const dropped: Record<string, string> = {
    "the clipboard": "\u001b]52;c;ZXZpbA==\u0007",
    "the title": "\u001b]0;owned\u001b\\",
    "a link": "\u001b]8;;http://evil.example/\u0007text\u001b]8;;\u0007",
    "a device string": "\u001bP1$r0m\u001b\\",
    "a query": "\u001b[6n\u001b[c",
    "a private mode": "\u001b[?1049h\u001b[?25l",
    "a character set": "\u001b(B",
    "a clear": "\u001b[2J\u001b[H",
    "a bell": "\u0007",
  };
  for (const [name, sequence] of Object.entries(dropped)) {
    test(`drop ${name}`, () => {
      expect(linesOf(`a${sequence}b\n`)).toEqual([name === "a link" ? "atextb" : "ab"]);
      expect(linesOf(...[...`a${sequence}b\n`])).toEqual([name === "a link" ? "atextb" : "ab"]);
    });
  }

  test("that never end do not hide other lines", () => {
    expect(linesOf("a\u001b]0;endless\nnext\n", "b\u001b[\nafter\n")).toEqual(["a", "next", "b", "after"]);
    const [line = "", next] = linesOf(`\u001b[${"1".repeat(10_000)}mx\nnext\n`);
    expect(line.length).toBeLessThanOrEqual(LINE_CHARACTERS_MAX);
    expect(next).toBe("next");
  });

  test("and control characters in any number do not repeat the search for the end of a line", () => {
    using look = spyOn(String.prototype, "indexOf");
    for (const unit of ["\u0000", "\r", "\u001b[m"]) {
      const buffer = new OutputBuffer();
      look.mockClear();
      buffer.add(output(`${unit.repeat(1000)}\n${unit.repeat(1000)}end\n`));
      expect(look.mock.calls.filter(([text]) => text === "\n").length).toBeLessThan(5);
      expect(buffer.lines().map(({ text }) => text)).toEqual(["", "end"]);
    }
  });

  test("other control characters are shown as pictures", () => {
    expect(linesOf("a\u0001b\u007fc\n")).toEqual(["a\u2401b\u2421c"]);
    expect(linesOf("\u009b31m")).toEqual(["\ufffd31m"]);
    expect(linesOf("a\tb")).toEqual(["a\tb"]);
  });
});

describe("styles", () => {
  const classes = (parameters: string) => classesOf(styleAfter(PLAIN_STYLE, parameters));
  test("are classes of a fixed set", () => {
    expect(classes("1;4;31;107")).toBe("sgr-text-1 sgr-behind-15 sgr-bold sgr-underline");
    expect(classes("38;5;196")).toBe("sgr-text-9");
    expect(classes("48;2;0;0;0")).toBe("sgr-behind-0");
    expect(classes("38:2::0:255:0")).toBe("sgr-text-10");
    expect(classes("38;5;244;1")).toBe("sgr-text-8 sgr-bold");
    expect(classes("999;;")).toBe("");
  });

  test("have the colours of the theme as properties", () => {
    const colors = (parameters: string) => colorsOf(styleAfter(PLAIN_STYLE, parameters));
    expect(colors("31;107")).toEqual({
      "--sgr-text": "light-dark(#b3261e, #f2887f)",
      "--sgr-behind": "light-dark(#ffffff, #4a4f4a)",
    });
    expect(colors("1;49")).toEqual({ "--sgr-text": undefined, "--sgr-behind": undefined });
  });

  test("are undone one by one, and all together", () => {
    const style = styleAfter(PLAIN_STYLE, "1;2;3;9;35;45");
    expect(classesOf(styleAfter(style, "22;39"))).toBe("sgr-behind-5 sgr-italic sgr-strike");
    expect(styleAfter(style, "")).toBe(PLAIN_STYLE);
    expect(styleAfter(style, "0")).toBe(PLAIN_STYLE);
  });
});

describe("search", () => {
  test("finds every place, and is case-sensitive only for words with upper-case letters", () => {
    expect(placesOf("Error: error", "error")).toEqual([
      { from: 0, to: 5 },
      { from: 7, to: 12 },
    ]);
    expect(placesOf("Error: error", "Error")).toEqual([{ from: 0, to: 5 }]);
    expect(placesOf("aaa", "aa")).toEqual([{ from: 0, to: 2 }]);
    expect(placesOf("x", "")).toEqual([]);
    expect(placesOf("a".repeat(4096), "a").length).toBe(128);
  });

  test("returns the numbers of lines", () => {
    const buffer = new OutputBuffer();
    buffer.add(output("One\ntwo\nONE\n"));
    expect(linesWith(buffer.lines(), "one")).toEqual([0, 2]);
    expect(linesWith(buffer.lines(), "ONE")).toEqual([2]);
  });

  test("cuts pieces at styles and places", () => {
    const spans = [
      { from: 2, style: 1 },
      { from: 4, style: 0 },
    ];
    expect(lineSpans("abcdef", spans, [{ from: 3, to: 5 }])).toEqual([
      { text: "ab", style: 0, isFound: false },
      { text: "c", style: 1, isFound: false },
      { text: "d", style: 1, isFound: true },
      { text: "e", style: 0, isFound: true },
      { text: "f", style: 0, isFound: false },
    ]);
  });
});
