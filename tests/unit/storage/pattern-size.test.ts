import { describe, expect, spyOn, test } from "bun:test";
import { RE2JS, RE2JSException } from "re2js";
import { LinePattern } from "../../../src/storage/tree/line-pattern.ts";
import { patternSize } from "../../../src/storage/tree/pattern-size.ts";
import { seededRandom } from "../../support/random.ts";

/** null: not a pattern */
function compiledSize(pattern: string): number | null {
  try {
    return RE2JS.compile(pattern).programSize();
  } catch (error) {
    if (error instanceof RE2JSException) return null;
    throw error;
  }
}

describe("the size of a pattern", () => {
  test.each([
    "needle",
    "x{0,1000}",
    "x{1000}".repeat(5),
    "(x{30}){30}",
    "(?:x{0,30}|y{2,}){30}",
    "[[:alpha:]]{7}]{7}",
    "[]{9}]{9}",
    String.raw`\Qx{9}(\E{9}`,
    String.raw`\x{41}{9}\pL{9}\p{Greek}{9}\({9}`,
  ])("%s is close to that of its program", (pattern) => {
    const size = compiledSize(pattern) ?? 0;
    expect(patternSize(pattern)).toBeGreaterThanOrEqual(size);
    expect(patternSize(pattern)).toBeLessThanOrEqual(1.2 * size + 10);
  });

  test.each([1, 2, 3, 4])("is at least that of its program (seed %i)", (seed) => {
    const { below } = seededRandom(seed);
    const pick = (from: readonly string[]): string => from[below(from.length)] ?? "";
    const atoms = ["a", "\u00e9", ".", "^", "$", "{", "}", "{,3}", "[a-z]", "[]a]", "[^]]", "[[:alpha:]x]", "(?i)", ""];
    const escapes = ["b", "d", "pL", "p{Greek}", "x41", "x{1F600}", "x4", "Qa{9}(\\E", "Q\\E", "Qab", "{", "(", "101"];
    const repetitions = ["", "*", "+", "?", "*?", "{3}", "{0,7}", "{2,}", "{0,}", "{0}", "{1,1}", "{2,5}?", "{12,40}"];
    const groups = ["(", "(?:", "(?i:", "(?P<name>", "(?<other>"];
    const patternOf = (depth: number): string =>
      Array.from({ length: 1 + below(4) }, () => {
        const kind = below(depth > 3 ? 2 : 3);
        const atom =
          kind === 0 ? pick(atoms) : kind === 1 ? `\\${pick(escapes)}` : `${pick(groups)}${patternOf(depth + 1)})`;
        return `${atom}${pick(repetitions)}${below(5) === 0 ? "|" : ""}`;
      }).join("");
    let count = 0;
    while (count < 500) {
      const pattern = patternOf(0);
      const size = compiledSize(pattern);
      if (size === null) continue;
      count += 1;
      expect({ pattern, isEnough: patternSize(pattern) >= size }).toEqual({ pattern, isEnough: true });
    }
  });

  test("is checked before a pattern is compiled", () => {
    using compile = spyOn(RE2JS, "compile");
    for (const patterns of [["x{0,1000}".repeat(110)], Array(16).fill("x{1000}y{1000}z{1000}")]) {
      expect(() => new LinePattern(patterns, "sensitive")).toThrow("pattern is not valid: it is too complex");
    }
    expect(compile).not.toHaveBeenCalled();
  });
});
