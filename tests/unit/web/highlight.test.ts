import { describe, expect, test } from "bun:test";
import { GRAMMARS } from "../../../src/web/worker/grammars.ts";
import { highlight } from "../../../src/web/worker/highlight.ts";
import { LINE_CHARACTERS_MAX, TOKEN_KINDS } from "../../../src/web/worker/messages.ts";
import { linesOf } from "../../../src/web/worker/text-lines.ts";

/** The tokens of each line, as pairs of kind and text. */
function tokensIn(content: string, language: string): string[][] {
  const { text, starts } = linesOf(new TextEncoder().encode(content));
  const { triples, firsts } = highlight({ text, starts, language });
  return Array.from({ length: starts.length - 1 }, (_, line) => {
    const tokens: string[] = [];
    for (let index = firsts[line] ?? 0; index < (firsts[line + 1] ?? 0); index += 1) {
      const [start = 0, end = 0, kind = 0] = triples.subarray(index * 3, index * 3 + 3);
      expect(start).toBeGreaterThanOrEqual(starts[line] ?? 0);
      expect(end).toBeLessThanOrEqual(starts[line + 1] ?? 0);
      tokens.push(`${TOKEN_KINDS[kind]} ${text.slice(start, end)}`);
    }
    return tokens;
  });
}

describe("highlighting", () => {
  test("returns tokens by line", () => {
    expect(tokensIn('import os\n# why\nx = "a" + 1\n', "python")).toEqual([
      ["keyword import"],
      ["comment # why"],
      ['string "a"', "number 1"],
    ]);
  });

  test("splits a token that spans lines, and skips empty ones", () => {
    const lines = tokensIn("/* a\n\nb */ int x;", "c");
    expect(lines).toEqual([["comment /* a"], [], ["comment b */", "type int"]]);
  });

  test("reads a long line as far as it is shown, then the next one", () => {
    const long = `"${"x".repeat(1_048_576)}"`;
    const lines = tokensIn(`[${long},\n1]`, "json");
    expect(lines[0]?.every((token) => token.length < LINE_CHARACTERS_MAX + 20)).toBe(true);
    expect(lines[1]?.at(0)).toContain("1");
  });

  test("accepts text that nests as deep as it is long", () => {
    expect(() => tokensIn("{".repeat(50_000), "json")).not.toThrow();
    expect(() => tokensIn("$(".repeat(20_000), "bash")).not.toThrow();
  });

  test("supports each language of its list, and reports others as unsupported", () => {
    for (const language of Object.keys(GRAMMARS)) expect(() => tokensIn("a b c\n", language)).not.toThrow();
    expect(() => tokensIn("a", "klingon")).toThrow();
  });
});
