import { expect, test } from "bun:test";
import { countTests, forbiddenSkips } from "../support/rings/test-counts.ts";

const CLOSING = `bun test v1.4.4
tests/a.test.ts:
(pass) adds [0.10ms]
(skip) the real program (needs KVM; it is not installed) > boots
(skip) the real program (needs KVM; it is not installed) > (unnamed)
(skip) mounts (needs a newer kernel) [0.02ms]
(skip) forgets
(todo) later
 12 pass
 4 skip
 1 todo
 3 fail
 18 expect() calls
Ran 18 tests across 1 file. [320.00ms]
`;

test("reads the counts from the closing lines", () => {
  expect(countTests(CLOSING)).toEqual({
    passed: 12,
    failed: 3,
    skipped: [
      { name: "the real program (needs KVM; it is not installed) > boots", needs: "KVM; it is not installed" },
      { name: "mounts (needs a newer kernel)", needs: "a newer kernel" },
      { name: "forgets", needs: null },
      { name: "later", needs: null },
    ],
    failures: [],
  });
});

test("colours and the dotted reporter do not matter", () => {
  expect(countTests("\x1b[32m 4 pass\x1b[0m\n\x1b[2m 0 fail\x1b[0m\n")).toMatchObject({ passed: 4, failed: 0 });
  expect(countTests("4 pass\n1 fail\n")).toMatchObject({ passed: 4, failed: 1 });
});

test("does not count lines that a test prints", () => {
  expect(countTests("it printed: 99 pass\n99 passengers\n 1 pass\n 0 fail\n")).toMatchObject({ passed: 1, failed: 0 });
});

test("an interrupted run has no counts", () => {
  expect(countTests("bun test v1.4.4\n(pass) adds\n")).toEqual({ passed: 0, failed: 0, skipped: [], failures: [] });
});

test("lists a failure once, with its error", () => {
  const output = [
    "error: of a test that passed all the same",
    "(pass) adds [0.10ms]",
    "error: expect(received).toBe(expected)",
    "",
    "Expected: 4",
    "Received: 5",
    "      at <anonymous> (/a.test.ts:3:5)",
    "(fail) a sum > of two and two [1.50ms]",
    "killed 1 dangling process",
    "(fail) a sum > without end [60001.33ms]",
    "2 tests failed:",
    "(fail) a sum > of two and two [1.50ms]",
    "(fail) a sum > without end [60001.33ms]",
  ].join("\n");
  expect(countTests(output).failures).toEqual([
    "a sum > of two and two: expect(received).toBe(expected) | Expected: 4 | Received: 5",
    "a sum > without end",
  ]);
});

test("an error of a hook is known by its own name", () => {
  const output = [
    "SqliteError: database is locked",
    "      at <anonymous> (/a.test.ts:3:5)",
    "(fail) a list > (unnamed) [1.50ms]",
    "ENOENT: no such file or directory, rename 'a' -> 'b'",
    '    path: "a",',
    " errno: -2",
    "(fail) a walk > (unnamed) [1.50ms]",
  ].join("\n");
  expect(countTests(output).failures).toEqual([
    "a list > (unnamed): SqliteError: database is locked",
    `a walk > (unnamed): ENOENT: no such file or directory, rename 'a' -> 'b' | path: "a", | errno: -2`,
  ]);
});

test("a skipped test says what it needs, and only KVM may be missing in CI", () => {
  const { skipped } = countTests(CLOSING);
  const forgotten = ["forgets", "later"].map((name) => ({ name, why: "and does not say what it needs" }));
  expect(forbiddenSkips(skipped, false)).toEqual(forgotten);
  const mounts = { name: "mounts (needs a newer kernel)", why: "which CI does not allow" };
  expect(forbiddenSkips(skipped, true)).toEqual([mounts, ...forgotten]);
});
