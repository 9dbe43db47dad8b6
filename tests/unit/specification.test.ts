import { expect, test } from "bun:test";
import { SPECIFICATION } from "../support/source/specification.ts";
import { allCoveringTests, coveringTests, specificationTables } from "../support/source/specification-table.ts";

const ids = SPECIFICATION.flatMap(({ rows }) => Object.keys(rows));
const tests = allCoveringTests();

test("every row of the specification has a test and a unique id", () => {
  const covered = new Set(tests.flatMap(({ rows }) => rows));
  expect(ids.filter((id) => !covered.has(id))).toEqual([]);
  expect(ids.length).toBeGreaterThan(80);
  expect([...new Set(ids)]).toEqual(ids);
});

test("every row in a comment of a test exists, and every such comment is above a test", () => {
  const places = tests.map(({ path, line, ...test }) => ({ place: `${path}:${line}`, ...test }));
  const unknown = places.flatMap(({ place, rows }) =>
    rows.filter((id) => !ids.includes(id)).map((id) => `${place}: ${id}`),
  );
  expect(unknown).toEqual([]);
  expect(places.filter(({ title }) => title === null)).toEqual([]);
});

/** Written in parts, so that this file itself names no rows. */
const TAG = ["//", "spec:"].join(" ");

test("titles are found in every form of a test", () => {
  const file = [
    'describe("a group", () => {',
    `  ${TAG} a.b, a.c`,
    `  ${TAG} a.d`,
    '  test("plain", () => undefined);',
    `  ${TAG} b`,
    "  test.each([",
    '    ["no title", 1],',
    '  ])("each %s", async (text) => undefined);',
    "});",
    `${TAG} c`,
    "programTest(",
    '  "it\'s \\"quoted\\"",',
    "  async () => undefined,",
    ");",
    `${TAG} d`,
    "const notATest = 1;",
  ];
  expect(coveringTests("tests/x.test.ts", file.join("\n"))).toEqual([
    { path: "tests/x.test.ts", line: 4, title: "a group: plain", rows: ["a.b", "a.c", "a.d"] },
    { path: "tests/x.test.ts", line: 6, title: "a group: each %s", rows: ["b"] },
    { path: "tests/x.test.ts", line: 11, title: 'it\'s "quoted"', rows: ["c"] },
    { path: "tests/x.test.ts", line: 16, title: null, rows: ["d"] },
  ]);
});

test("a table has a row for each row of the specification, with links to its tests", () => {
  const covering = [{ path: "tests/api/x.test.ts", line: 1, title: "a | b", rows: ["a"] }];
  expect(specificationTables([{ title: "Things", rows: { a: "an `a`", b: "none" } }], covering)).toBe(
    "### Things\n\n| row | specification | tests |\n|---|---|---|\n" +
      "| `a` | an \\`a\\` | [api/x](../tests/api/x.test.ts): a \\| b |\n| `b` | none |  |\n",
  );
});
