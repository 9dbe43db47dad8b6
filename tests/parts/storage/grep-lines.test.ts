import { afterAll, describe, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { GrepLine } from "../../../src/domain/tree/grep.ts";
import type { GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { type GrepRequest, grep } from "../../../src/storage/tree/grep.ts";
import { unpacked } from "../../../src/storage/tree/packed-lines.ts";
import { failureOf } from "../../support/failures.ts";
import { makeLayer, testDirectory } from "../../support/images/layer-files.ts";
import { seededRandom } from "../../support/random.ts";

const directory = testDirectory("grep-lines");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const never = new AbortController().signal;
const NONE: Omit<GrepRequest, "layers" | "patterns"> = {
  ...{ paths: ["/" as GuestPath], matchCase: "sensitive", globs: [], limit: 1_000_000, fileLimit: null },
  ...{ before: 0, after: 0, ranges: true },
};

const layerOf = (content: Buffer) => {
  const extents = [[0, 0, content.length]] as const;
  return makeLayer(directory, [{ path: "f", type: "f", size: BigInt(content.length), extents }], content);
};

async function search(content: Buffer, options: Partial<GrepRequest> & Pick<GrepRequest, "patterns">) {
  const { lines: packed, bounds } = await grep({ ...NONE, layers: [await layerOf(content)], ...options }, never);
  return { lines: await Array.fromAsync(unpacked(packed)), bounds };
}

const rangesOf = ({ ranges }: GrepLine) => ranges.map(({ start, end }) => [start, end]);

describe("lines with their offsets and contexts", () => {
  const parts = ["needle", "two", "\r", " ", "caf\u00e9", "", "x".repeat(300)].map((text) => Buffer.from(text));
  const rounds = Array.from({ length: 12 }, (_, seed) => seed);

  test.each(rounds)("are those of GNU grep (seed %i)", async (seed) => {
    const { below } = seededRandom(seed);
    const pick = <T>(from: readonly T[]): T => from[below(from.length)] as T;
    const bytes: Buffer[] = [];
    // Some contents are longer than a chunk, and some lines are not UTF-8.
    for (let words = seed % 3 === 0 ? 30_000 : 200; words > 0; words--) {
      const line = below(50) === 0 ? [Buffer.from([0xff, 0xe2])] : [pick(parts), pick(parts)];
      bytes.push(...line, Buffer.from(below(3) === 0 ? "\n" : " "));
    }
    const content = Buffer.concat(bytes);
    const file = join(directory, `seed-${seed}`);
    await writeFile(file, content);
    for (const [before, after, fileLimit] of [
      [0, 0, null],
      [2, 0, null],
      [0, 3, 4],
      [5, 5, null],
      [50, 1, 7],
    ] as const) {
      const numbers = [`-B${before}`, `-A${after}`, ...(fileLimit === null ? [] : [`-m${fileLimit}`])];
      const argv = ["grep", "-nab", ...numbers, "--no-group-separator", "-e", "needle", "-e", "^tw", file];
      const expected = Bun.spawnSync(argv, { env: { LC_ALL: "C" } }).stdout.toString("latin1");
      const { lines } = await search(content, { patterns: ["needle", "^tw"], before, after, fileLimit });
      const printed = lines.map(({ line, offset, kind, bytes: text, length, hasFeed }) => {
        const separator = kind === "match" ? ":" : "-";
        expect(
          content
            .subarray(offset, offset + length)
            .subarray(0, text.length)
            .equals(text),
        ).toBe(true);
        expect(content[offset + length]).toBe(hasFeed ? 0x0a : undefined);
        const whole = content.toString("latin1", offset, offset + length);
        return `${line}${separator}${offset}${separator}${whole}\n`;
      });
      expect(printed.join("")).toBe(expected);
    }
  });

  test("have the real length of a line that is too long, at its place among others", async () => {
    const long = Buffer.concat([Buffer.from("needle "), Buffer.alloc(3_000_000, "y")]);
    const content = Buffer.concat([Buffer.from("one\n"), long, Buffer.from("\ntwo\n"), long]);
    const { lines, bounds } = await search(content, { patterns: ["needle", "two"], before: 1 });
    const expected = [
      ["context", 1, 0, 3, true, false],
      ["match", 2, 4, long.length, true, true],
      ["match", 3, long.length + 5, 3, true, false],
      ["match", 4, long.length + 9, long.length, false, true],
    ] as const;
    const fields = lines.map((line) => [line.kind, line.line, line.offset, line.length, line.hasFeed, line.isCut]);
    expect(fields as unknown).toEqual(expected);
    expect(bounds).toEqual(["line_length"]);
  });

  test("come from a long line before a match, too", async () => {
    const content = Buffer.concat([Buffer.alloc(700_000, "y"), Buffer.from("\nneedle")]);
    const [context, match] = (await search(content, { patterns: ["needle"], before: 3 })).lines;
    expect(context).toMatchObject({ kind: "context", line: 1, length: 700_000, isCut: true, hasFeed: true });
    expect(match).toMatchObject({ kind: "match", line: 2, offset: 700_001, hasFeed: false });
  });
});

describe("ranges", () => {
  test("are those of all patterns, which do not overlap", async () => {
    const [line] = (await search(Buffer.from("a needle in needles"), { patterns: ["need", "needle", "in|s$"] })).lines;
    expect(rangesOf(line as GrepLine)).toEqual([
      [2, 6],
      [9, 11],
      [12, 16],
      [18, 19],
    ]);
  });

  test("count bytes, also of lines that are not UTF-8", async () => {
    const { below } = seededRandom(5);
    const bad = [
      [0xff],
      [0xe2, 0x82],
      [0xf0, 0x9f, 0x98],
      [0xed, 0xa0, 0x80],
      [0xc0, 0xaf],
      [0xf4, 0x90],
      [0xef, 0xbf],
    ];
    const pieces = ["x", "\u00e9", "\u20ac", "\u{1f600}", "\ufffd"].map((text) => Buffer.from(text));
    for (let round = 0; round < 300; round++) {
      const bytes: Buffer[] = [];
      const expected: number[][] = [];
      for (let count = below(8); count >= 0; count--) {
        bytes.push(
          below(3) === 0 ? Buffer.from(bad[below(bad.length)] ?? []) : (pieces[below(pieces.length)] as Buffer),
        );
        const at = Buffer.concat(bytes).length;
        // An ASCII letter ends the sequence before it.
        bytes.push(Buffer.from("QR"));
        expected.push([at, at + 2]);
      }
      const [line] = (await search(Buffer.concat(bytes), { patterns: ["QR"] })).lines;
      expect(rangesOf(line as GrepLine)).toEqual(expected);
    }
  });

  test("are empty where an empty text matches, but not right behind another", async () => {
    const [line] = (await search(Buffer.from("axxb"), { patterns: ["x*"] })).lines;
    expect(rangesOf(line as GrepLine)).toEqual([
      [0, 0],
      [1, 3],
      [4, 4],
    ]);
  });

  test("are those in the text, and the first one", async () => {
    const content = Buffer.from(`${"y".repeat(5000)}needle needle`);
    const [line] = (await search(content, { patterns: ["needle"] })).lines;
    expect(rangesOf(line as GrepLine)).toEqual([[5000, 5006]]);
    const [all] = (await search(Buffer.alloc(60_000, "n"), { patterns: ["n"] })).lines;
    expect(all?.ranges).toHaveLength(4096);
  });
});

describe("patterns", () => {
  const matches = async (text: string, ...patterns: string[]) =>
    (await search(Buffer.from(text), { patterns })).lines.length > 0;

  test("cannot reach into one another", async () => {
    expect(await matches("b", "\\Qa", "b")).toBe(true);
    expect(await matches("a)|(?:b", "\\Qa)|(?:b", "c")).toBe(true);
    expect(await matches("B", "(?i)a", "b")).toBe(false);
    expect(await failureOf(matches("b", "a)|(?:b", "c"))).toMatchObject({ code: "validation_error" });
    expect(await failureOf(matches("b", "(?:a", "b)"))).toMatchObject({ code: "validation_error" });
  });

  test("are refused when they are too large together", async () => {
    const large = Array.from({ length: 16 }, (_, index) => `${index}${"a{1000}".repeat(140)}`);
    expect(await failureOf(matches("a", ...large))).toMatchObject({ code: "validation_error" });
    expect(await matches("1a", ...large.map((_, index) => `${index}a{900}|${index}a`))).toBe(true);
  });

  test.each([
    ["needle", true],
    ["Needle", false],
    ["n\\x45EDLE", false],
    ["n\\W*eedle", true],
    ["(?P<Name>needle)", true],
    ["[[:^alpha:]]?needle", true],
    ["\\p{Lu}eedle", true],
    ["\\Qneedle\\E", true],
    ["\\QNeedle", false],
  ])("%s ignores case by itself: %p", async (pattern, ignores) => {
    const { lines } = await search(Buffer.from("NEEDLE"), { patterns: [pattern], matchCase: "smart" });
    expect(lines.length > 0).toBe(ignores);
  });
});
