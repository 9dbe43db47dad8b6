import { describe, expect, test } from "bun:test";
import { compare } from "../../../src/web/worker/text-diff.ts";
import { lineOf } from "../../../src/web/worker/text-lines.ts";

const bytesOf = (text: string): ArrayBuffer => new TextEncoder().encode(text).slice().buffer;

/** The lines of a comparison, each with " ", "-" or "+". */
function linesOf(before: string | null, after: string | null): string[] {
  const reply = compare({
    before: before === null ? null : bytesOf(before),
    after: after === null ? null : bytesOf(after),
  });
  const lines: string[] = [];
  let left = 0;
  let right = 0;
  for (let index = 0; index < reply.pieces.length; index += 2) {
    const [kind = 0, count = 0] = reply.pieces.subarray(index, index + 2);
    for (let step = 0; step < count; step += 1) {
      lines.push(
        kind === 2 ? `+${lineOf(reply.after, right)}` : `${kind === 1 ? "-" : " "}${lineOf(reply.before, left)}`,
      );
      if (kind !== 2) left += 1;
      if (kind !== 1) right += 1;
    }
  }
  expect([left, right]).toEqual([reply.before.starts.length - 1, reply.after.starts.length - 1]);
  return lines;
}

describe("a comparison of texts", () => {
  test("shows removed and added lines in their places", () => {
    expect(linesOf("a\nb\nc\nd\n", "a\nB\nc\nd\ne\n")).toEqual([" a", "-b", "+B", " c", " d", "+e"]);
    expect(linesOf("same\n", "same\n")).toEqual([" same"]);
    expect(linesOf("a\na\na\n", "a\na\n")).toHaveLength(3);
  });

  test("with a missing file shows all lines of the other", () => {
    expect(linesOf(null, "x\ny\n")).toEqual(["+x", "+y"]);
    expect(linesOf("x\n", null)).toEqual(["-x"]);
    expect(linesOf(null, null)).toEqual([]);
  });

  test("that would take too long removes and adds all lines between the equal ends", () => {
    const side = (name: string) => Array.from({ length: 15_000 }, (_, index) => `${name} ${index}`).join("\n");
    const reply = compare({ before: bytesOf(`top\n${side("old")}\nend`), after: bytesOf(`top\n${side("new")}\nend`) });
    expect(reply.isComplete).toBe(false);
    expect([...reply.pieces]).toEqual([0, 1, 1, 15_000, 2, 15_000, 0, 1]);
  });
});
