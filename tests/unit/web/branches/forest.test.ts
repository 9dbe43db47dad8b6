import { describe, expect, test } from "bun:test";
import { Forest, lineageOf, newestOf } from "../../../../src/web/branches/model/forest.ts";
import { searchOf } from "../../../../src/web/branches/model/search.ts";
import { done, image, run } from "../../../support/page/branches.ts";

const childrenOf = (forest: Forest, id: string): string[] | undefined =>
  forest.images.get(id)?.children.map((child) => child.id);

describe("a forest", () => {
  test("is the same for rows in any order", () => {
    const rows = [image("a", null, 1), image("b", "a", 2), image("c", "a", 3), image("d", "c", 4)];
    for (const order of [rows, [...rows].reverse(), [rows[2], rows[0], rows[3], rows[1]]]) {
      const forest = new Forest();
      for (const row of order) if (row !== undefined) forest.add(row);
      expect(forest.roots.map(({ id }) => id)).toEqual(["a"]);
      expect(childrenOf(forest, "a")).toEqual(["b", "c"]);
      expect([...lineageOf(forest.images.get("d") ?? null)].map(({ id }) => id)).toEqual(["d", "c", "a"]);
    }
  });

  test("reads an image without a parent in its row as a root", () => {
    const forest = new Forest();
    forest.add(image("b", "gone", 2));
    expect(forest.roots.map(({ id }) => id)).toEqual(["b"]);
  });

  test("attaches children of a deleted image to its parent, and counts the gap", () => {
    const forest = new Forest();
    for (const row of [image("a", null, 1), image("b", "a", 2), image("c", "b", 3), image("d", "b", 4)])
      forest.add(row);
    forest.remove("b");
    expect(childrenOf(forest, "a")).toEqual(["c", "d"]);
    expect(forest.images.get("c")?.skipped).toBe(1);
    forest.remove("a");
    expect(forest.roots.map(({ id, skipped }) => [id, skipped])).toEqual([
      ["c", 2],
      ["d", 2],
    ]);
  });

  test("ignores a row that was read before a deletion", () => {
    const forest = new Forest();
    forest.add(image("a", null, 1));
    forest.add(image("b", "a", 2));
    forest.remove("b");
    forest.remove("x");
    for (const row of [image("b", "a", 2), image("x", "a", 3), image("c", "b", 4), image("d", "x", 5)]) forest.add(row);
    expect([...forest.images.keys()]).toEqual(["a", "c", "d"]);
    expect(childrenOf(forest, "a")).toEqual(["c"]);
    expect(forest.images.get("c")?.skipped).toBe(1);
    expect(forest.roots.map(({ id }) => id)).toEqual(["a", "d"]);
  });

  test("drops an image that was deleted before its parent arrived", () => {
    const forest = new Forest();
    forest.add(image("b", "a", 2));
    forest.remove("b");
    forest.add(image("a", null, 1));
    expect(childrenOf(forest, "a")).toEqual([]);
  });

  test("moves an image whose parent has changed", () => {
    const forest = new Forest();
    for (const row of [image("a", null, 1), image("b", "a", 2), image("c", "b", 3)]) forest.add(row);
    forest.add(image("c", "a", 3, { skipped: 1 }));
    expect(childrenOf(forest, "a")).toEqual(["b", "c"]);
    expect(childrenOf(forest, "b")).toEqual([]);
    forest.add(image("c", null, 3));
    expect(forest.roots.map(({ id }) => id)).toEqual(["a", "c"]);
  });

  test("has each tag once", () => {
    const forest = new Forest();
    forest.add(image("a", null, 1, { tag: "base" }));
    forest.add(image("b", "a", 2));
    forest.add(image("b", "a", 2, { tag: "base" }));
    expect(forest.images.get("a")?.tag).toBeNull();
    expect(forest.tagged("base")?.id).toBe("b");
    forest.remove("b");
    expect(forest.tagged("base")).toBeNull();
  });

  test("shows a run on its image until the image of the run arrives", () => {
    const forest = new Forest();
    forest.setRun(run("op", "a"));
    expect(forest.rootRuns.map(({ id }) => id)).toEqual(["op"]);
    forest.add(image("a", null, 1));
    expect(forest.rootRuns).toEqual([]);
    expect(forest.images.get("a")?.runs.map(({ id }) => id)).toEqual(["op"]);
    forest.setRun(run("op", "a", "ended"));
    expect(forest.images.get("a")?.runs.map(({ state }) => state)).toEqual(["ended"]);
    forest.add(image("b", "a", 2, { operation: "op" }));
    expect(forest.images.get("a")?.runs).toEqual([]);
    expect(forest.runs.size).toBe(0);
  });

  test("keeps a run whose image was deleted", () => {
    const forest = new Forest();
    forest.add(image("a", null, 1));
    forest.setRun(run("op", "a"));
    forest.remove("a");
    expect(forest.rootRuns.map(({ id }) => id)).toEqual(["op"]);
    forest.dropRun("op");
    expect(forest.rootRuns).toEqual([]);
  });

  test("counts the descendants of each image, in chains of any length", () => {
    const forest = new Forest();
    for (let at = 0; at < 20_000; at++) forest.add(image(`i${at}`, at === 0 ? null : `i${at - 1}`, at));
    const search = searchOf("i1999");
    done(forest.measure((node) => search?.finds(node) === true));
    const root = forest.images.get("i0");
    expect(root?.below).toBe(19_999);
    expect(root?.latest).toBe(19_999);
    // i1999 and i19990 to i19999
    expect(root?.hitsBelow).toBe(11);
  });

  test("lists its newest images", () => {
    const forest = new Forest();
    for (const [id, at] of [
      ["a", 3],
      ["b", 9],
      ["c", 5],
    ] as const)
      forest.add(image(id, null, at));
    expect(newestOf(forest.images.values(), 2).map(({ id }) => id)).toEqual(["b", "c"]);
  });
});
