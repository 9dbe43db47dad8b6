import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { foldedChain, opened, toggled } from "../../../../src/web/branches/model/branches.ts";
import { NO_FOLDS, type VisibleOptions, visibleItems } from "../../../../src/web/branches/model/folds.ts";
import { Forest } from "../../../../src/web/branches/model/forest.ts";
import { connectedIn, itemAt, itemsIn, type Layout, layOut } from "../../../../src/web/branches/model/layout.ts";
import { hitAfter, stepFrom, typedAhead } from "../../../../src/web/branches/model/navigation.ts";
import { searchOf } from "../../../../src/web/branches/model/search.ts";
import { titleOf } from "../../../../src/web/branches/model/text.ts";
import { done, image, run } from "../../../support/page/branches.ts";

const LOOK: VisibleOptions = { folds: NO_FOLDS, pins: new Set(), focus: null, isSearching: false, isComplete: true };
const WHOLE: VisibleOptions = { ...LOOK, folds: { ...NO_FOLDS, isWhole: true } };

/** A forest from pairs of image and parent, the oldest first. */
function forestOf(pairs: readonly (readonly [string, string | null])[]): Forest {
  const forest = new Forest();
  for (const [at, [id, parent]] of pairs.entries()) forest.add(image(id, parent, at));
  return forest;
}

function drawn(forest: Forest, options: Partial<VisibleOptions> = {}, query = ""): Layout {
  const search = searchOf(query);
  done(forest.measure(search === null ? null : (node) => search.finds(node)));
  return done(layOut(done(visibleItems(forest, { ...LOOK, ...options, isSearching: search !== null }))));
}

const keysOf = ({ items }: Layout): string[] => items.map(({ key }) => key);
const chain = (count: number): [string, string | null][] =>
  Array.from({ length: count }, (_, at) => [`c${at}`, at === 0 ? null : `c${at - 1}`]);
const fan = (count: number): [string, string | null][] => [
  ["base", null],
  ...Array.from({ length: count }, (_, at): [string, string] => [`f${at}`, "base"]),
];

describe("the visible items", () => {
  test("fold a chain between its ends", () => {
    const { items } = drawn(forestOf(chain(200)));
    expect(items.map(titleOf)).toEqual(["c0", "198 steps", "c199"]);
  });

  test("do not fold a short chain, a tag or a run", () => {
    expect(keysOf(drawn(forestOf(chain(4))))).toEqual(["c0", "c1", "c2", "c3"]);
    const forest = forestOf(chain(20));
    forest.tag("c10", "here");
    expect(drawn(forest).items.map(titleOf)).toEqual(["c0", "9 steps", "here", "8 steps", "c19"]);
    forest.setRun(run("op", "c5"));
    expect(keysOf(drawn(forest))).toEqual(["c0", "steps-c1", "c5", "op", "steps-c6", "c10", "steps-c11", "c19"]);
  });

  test("show the newest children of a fan, and the others fifty at a time", () => {
    const forest = forestOf(fan(1000));
    const { items } = drawn(forest);
    expect(items.map(titleOf).slice(0, 3)).toEqual(["base", "f999", "f998"]);
    const more = items.at(-1);
    if (more === undefined) throw new Error("nothing is shown");
    expect(titleOf(more)).toBe("992 more");
    const next = drawn(forest, { folds: toggled(NO_FOLDS, more) });
    expect(next.items).toHaveLength(1 + 58 + 1);
    expect(drawn(forest, WHOLE).items).toHaveLength(1001);
  });

  test("show the child of a fan with the latest work, even when it is old", () => {
    const forest = forestOf([...fan(100), ["new", "f3"]]);
    expect(keysOf(drawn(forest))).toContain("f3");
  });

  test("show a pinned image with its ancestors, even in a fold", () => {
    const forest = forestOf([
      ...fan(1000),
      ["deep", "f3"],
      ...Array.from({ length: 900 }, (_, at): [string, string] => [`g${at}`, "base"]),
    ]);
    expect(keysOf(drawn(forest))).not.toContain("deep");
    expect(keysOf(drawn(forest, { pins: new Set(["deep"]) }))).toContain("deep");
    expect(keysOf(drawn(forest, {}, "deep"))).toContain("deep");
  });

  test("hide the descendants of a closed image, except matches of the search", () => {
    const forest = forestOf([
      ["a", null],
      ["b", "a"],
      ["c", "b"],
      ["d", "a"],
    ]);
    const a = forest.images.get("a");
    if (a === undefined) throw new Error("the image is missing");
    const folds = opened(NO_FOLDS, a, false);
    expect(keysOf(drawn(forest, { folds }))).toEqual(["a"]);
    expect(keysOf(drawn(forest, { folds }, "c"))).toEqual(["a", "d", "b", "c"]);
  });

  test("fold an unfolded chain again", () => {
    const forest = forestOf(chain(20));
    const steps = drawn(forest).items[1];
    if (steps === undefined) throw new Error("there are no steps");
    const folds = toggled(NO_FOLDS, steps);
    expect(drawn(forest, { folds }).items).toHaveLength(20);
    const middle = forest.images.get("c9");
    if (middle === undefined) throw new Error("the image is missing");
    expect(drawn(forest, { folds: foldedChain(folds, middle) }).items).toHaveLength(3);
  });

  test("show a single branch with its ancestors and descendants", () => {
    const forest = forestOf([
      ["r", null],
      ["a", "r"],
      ["b", "r"],
      ["a1", "a"],
      ["a2", "a"],
      ["s", null],
    ]);
    const focus = forest.images.get("a") ?? null;
    expect(keysOf(drawn(forest, { focus }))).toEqual(["r", "a", "a2", "a1"]);
  });

  test("start with the base that has the latest work", () => {
    const forest = forestOf([
      ["old", null],
      ["idle", null],
      ["x", "old"],
    ]);
    done(forest.measure(null));
    for (const root of forest.roots) root.rank = root.latest;
    expect(keysOf(drawn(forest))).toEqual(["old", "x", "idle"]);
  });

  test("are few enough to be read, of 10,000 images", () => {
    const pairs = Array.from({ length: 10_000 }, (_, at): [string, string | null] => [
      `n${at}`,
      at < 10 ? null : `n${at % 10}`,
    ]);
    const { items } = drawn(forestOf(pairs));
    expect(items.length).toBe(10 * (1 + 8 + 1));
  });
});

describe("the layout", () => {
  /** Forests in which any older image, or none, is the parent of an image. */
  const forests = fc
    .array(fc.integer({ min: 0, max: 1_000 }), { minLength: 1, maxLength: 80 })
    .map((numbers) =>
      forestOf(numbers.map((number, at) => [`n${at}`, number % (at + 1) === at ? null : `n${number % (at + 1)}`])),
    );

  test("has one item at each place, children to the right of their parent, the first child in the parent's row", () => {
    void fc.assert(
      fc.property(forests, (forest) => {
        const layout = drawn(forest, WHOLE);
        expect(layout.items).toHaveLength(forest.images.size);
        const places = layout.items.map(({ column, row }) => `${column} ${row}`);
        expect(new Set(places).size).toBe(places.length);
        for (const item of layout.items) {
          expect(itemAt(layout, item.column, item.row)).toBe(item);
          if (item.parent === null) expect(item.column).toBe(0);
          else {
            expect(item.column).toBe(item.parent.column + 1);
            expect(item.row >= item.parent.row).toBe(true);
            expect(item.row <= item.parent.lastRow).toBe(true);
            expect(item.place === 1).toBe(item.row === item.parent.row);
          }
        }
      }),
    );
  });

  test("finds the items of an area, and the connections that cross it", () => {
    void fc.assert(
      fc.property(forests, fc.nat(20), fc.nat(6), (forest, firstRow, height) => {
        const layout = drawn(forest, WHOLE);
        const lastRow = firstRow + height;
        const inRows = layout.items.filter(({ row }) => row >= firstRow && row <= lastRow);
        const area = { firstColumn: 0, lastColumn: 99, firstRow, lastRow };
        expect(itemsIn(layout, area, 1_000)).toEqual(inRows);
        const connected = [...connectedIn(layout, firstRow, lastRow)];
        // A connection is visible where its parent is above the end of the area, and a child in it or below.
        const crossing = layout.items.filter(
          (item) => item.lastRow > item.row && item.row <= lastRow && item.lastRow >= firstRow,
        );
        const from = new Set(connected.map((connection) => connection.from));
        for (const item of crossing) {
          const isPageVisible = layout.items.some(
            (child) => child.parent === item && child.row >= firstRow && (child.row <= lastRow || item.row <= lastRow),
          );
          if (isPageVisible) expect(from.has(item)).toBe(true);
        }
      }),
    );
  });

  test("moves no item when a line grows at its end", () => {
    const forest = forestOf([
      ["r", null],
      ["a", "r"],
      ["b", "r"],
      ["c", "r"],
    ]);
    forest.tag("b", "kept");
    const before = new Map(drawn(forest).items.map(({ key, row, column }) => [key, `${column} ${row}`]));
    forest.add(image("b2", "b", 50));
    for (const { key, row, column } of drawn(forest).items) {
      if (key !== "b2") expect(before.get(key)).toBe(`${column} ${row}`);
    }
  });
});

describe("keys", () => {
  const layout = drawn(
    forestOf([
      ["r", null],
      ["a", "r"],
      ["b", "r"],
      ["a1", "a"],
      ["b1", "b"],
      ["b2", "b"],
      ["s", null],
    ]),
  );
  const item = (key: string) => {
    const entry = layout.byKey.get(key);
    if (entry === undefined) throw new Error(`${key} is not shown`);
    return entry;
  };

  test("move through the drawing", () => {
    // s / r - b - b2 / b1 / a - a1
    expect(keysOf(layout)).toEqual(["s", "r", "b", "b2", "b1", "a", "a1"]);
    const from = (key: string, step: Parameters<typeof stepFrom>[2]) => stepFrom(layout, item(key), step).key;
    expect(from("r", "child")).toBe("b");
    expect(from("b1", "child")).toBe("b1");
    expect(from("b1", "parent")).toBe("b");
    expect(from("r", "parent")).toBe("r");
    expect(from("b2", "down")).toBe("b1");
    expect(from("b1", "down")).toBe("a1");
    expect(from("a1", "up")).toBe("b1");
    expect(from("b", "up")).toBe("s");
    expect(from("b", "down")).toBe("b1");
    expect(from("a", "down")).toBe("a");
    expect(from("s", "next")).toBe("r");
    expect(from("s", "previous")).toBe("s");
    expect(from("b", "first")).toBe("s");
    expect(from("b", "last")).toBe("a1");
  });

  test("reach every item, line by line", () => {
    const seen = ["s"];
    for (let at = item("s"); stepFrom(layout, at, "next") !== at; ) {
      at = stepFrom(layout, at, "next");
      seen.push(at.key);
    }
    expect(seen).toEqual(keysOf(layout));
  });

  test("find the typed text", () => {
    expect(typedAhead(layout, item("b1"), "b", titleOf)?.key).toBe("b");
    expect(typedAhead(layout, item("b"), "b", titleOf)?.key).toBe("b2");
    expect(typedAhead(layout, item("b"), "b1", titleOf)?.key).toBe("b1");
    expect(typedAhead(layout, item("b"), "x", titleOf)).toBeNull();
  });

  test("move from each match to the next, and around", () => {
    const layout = drawn(
      forestOf([
        ["r", null],
        ["x1", "r"],
        ["b", "r"],
        ["x2", "b"],
      ]),
      {},
      "x",
    );
    const first = hitAfter(layout, null, false);
    expect(first?.key).toBe("x2");
    expect(hitAfter(layout, first, false)?.key).toBe("x1");
    expect(hitAfter(layout, hitAfter(layout, first, false), false)?.key).toBe("x2");
    expect(hitAfter(layout, first, true)?.key).toBe("x1");
    expect(hitAfter(drawn(forestOf([["r", null]]), {}, "none"), null, false)).toBeNull();
  });
});
