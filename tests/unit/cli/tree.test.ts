import { expect, test } from "bun:test";
import { drawTree } from "../../../src/cli/history.ts";
import type { ImageStep } from "../../../src/client/types.ts";

/** Images by name, each with the name of its parent. */
function steps(...pairs: readonly (readonly [string, string?])[]): ImageStep[] {
  const common = { created_at: "", size_bytes: 1, deleted: false, kind: "instance", command: ["x"] };
  return pairs.map(([uuid, parent]) => ({ ...common, uuid, parent }) as unknown as ImageStep);
}

const drawn = (...pairs: readonly (readonly [string, string?])[]): string[] =>
  drawTree(steps(...pairs))
    .replaceAll("  1 B  x", "")
    .trimEnd()
    .split("\n");

test("branches are drawn below their parent", () => {
  expect(drawn(["a"], ["b", "a"], ["c", "a"], ["d", "b"], ["e", "b"], ["f", "c"])).toEqual([
    "a",
    "├─ b",
    "│  ├─ d",
    "│  └─ e",
    "└─ c",
    "   └─ f",
  ]);
});

test("a long chain stays within a terminal's width, and shows its branches", () => {
  const chain = Array.from({ length: 5000 }, (_, index): [string, string?] =>
    index === 0 ? ["n0"] : [`n${index}`, `n${index - 1}`],
  );
  const lines = drawn(...chain, ["x", "n4000"]);
  expect(lines).toHaveLength(5001);
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThan(80);
  const indent = " ".repeat(57);
  expect(lines.slice(18, 23)).toEqual([
    `${" ".repeat(51)}└─ n18`,
    `${" ".repeat(54)}└─ n19`,
    `${indent}└─ n20`,
    `${indent}└─ n21`,
    `${indent}└─ n22`,
  ]);
  expect(lines.slice(4000, 4003)).toEqual([`${indent}└─ n4000`, `${indent}   ├─ n4001`, `${indent}   │  └─ n4002`]);
  expect(lines.at(-1)).toBe(`${indent}   └─ x`);
});

test("a step says how its command ended, and whether it had a network", () => {
  const [plain] = steps(["a"]);
  const ends = [
    { exit_code: 3, network: true },
    { timed_out: true, network: true },
    { kind: "checkpoint", network: true },
  ];
  const lines = ends.map((end) => drawTree([{ ...plain, ...end } as ImageStep]).trimEnd());
  expect(lines).toEqual(
    ["x (exit 3) (network)", "x (timed out) (network)", "x (checkpoint) (network)"].map((text) => `a  1 B  ${text}`),
  );
});
