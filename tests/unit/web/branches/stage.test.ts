import { describe, expect, test } from "bun:test";
import { NO_FOLDS, visibleItems } from "../../../../src/web/branches/model/folds.ts";
import { Forest } from "../../../../src/web/branches/model/forest.ts";
import { COLUMN_PX, type Layout, layOut, ROW_PX } from "../../../../src/web/branches/model/layout.ts";
import { areaOf, fitted, START, scaled, sizeOf, within } from "../../../../src/web/branches/tree/camera.ts";
import { Stage } from "../../../../src/web/branches/tree/stage.ts";
import { done, image } from "../../../support/page/branches.ts";

const VIEW = { width: 1_000, height: 600 };

function forestOf(count: number): Forest {
  const forest = new Forest();
  forest.add(image("base", null, 0));
  for (let at = 0; at < count; at++) forest.add(image(`n${at}`, at % 9 === 0 ? "base" : `n${at - 1}`, at + 1));
  return forest;
}

function drawn(forest: Forest): Layout {
  done(forest.measure(null));
  const view = { pins: new Set<string>(), focus: null, isSearching: false, isComplete: true };
  return done(layOut(done(visibleItems(forest, { ...view, folds: { ...NO_FOLDS, isWhole: true } }))));
}

function stageOf(layout: Layout, isStill = true): Stage {
  const stage = new Stage({ isStill, unit: 1 });
  stage.resize(VIEW);
  stage.follow(layout, null, true, 0);
  return stage;
}

/** The position of an item's left upper corner on the screen. */
function seenAt(stage: Stage, key: string): { x: number; y: number } {
  const item = stage.layout?.byKey.get(key);
  if (item === undefined) throw new Error(`${key} is not drawn`);
  const { camera } = stage;
  return { x: (item.column * COLUMN_PX - camera.x) * camera.scale, y: (item.row * ROW_PX - camera.y) * camera.scale };
}

describe("the view", () => {
  test("stays on the selected item when items above it grow", () => {
    const forest = forestOf(200);
    const stage = stageOf(drawn(forest));
    stage.pan(0, 400);
    const before = seenAt(stage, "n162");
    forest.add(image("new", "base", 1_000));
    stage.follow(drawn(forest), "n162", true, 1);
    expect(seenAt(stage, "n162")).toEqual(before);
  });

  test("stays at the beginning while images arrive", () => {
    const forest = forestOf(10);
    const stage = new Stage({ isStill: true, unit: 1 });
    stage.resize(VIEW);
    stage.follow(drawn(forest), null, false, 0);
    for (let at = 10; at < 60; at++) forest.add(image(`n${at}`, "base", at + 1));
    stage.follow(drawn(forest), null, true, 1);
    expect(stage.camera).toEqual(START);
  });

  test("moves a place to its middle, also one outside of the view", () => {
    const stage = stageOf(drawn(forestOf(500)));
    stage.show({ column: 5, row: 40 }, true);
    const { firstRow, lastRow, firstColumn, lastColumn } = areaOf(stage.camera, VIEW, 0);
    expect(firstRow <= 40 && lastRow >= 40 && firstColumn <= 5 && lastColumn >= 5).toBe(true);
    const { camera } = stage;
    stage.show({ column: 5, row: 41 }, true);
    expect(stage.camera).toEqual(camera);
  });

  test("zooms at a point, within bounds, and never beyond the drawing", () => {
    const layout = drawn(forestOf(500));
    const at = { x: 300, y: 200 };
    const near = scaled(START, 1.5, at);
    expect(near.x + at.x / near.scale).toBeCloseTo(START.x + at.x);
    const far = within({ x: 1e9, y: -1e9, scale: 1e-9 }, VIEW, layout);
    expect(far.scale).toBeGreaterThan(0.01);
    expect(far.x).toBeLessThan(sizeOf(layout).width);
    expect(far.y).toBeGreaterThan(-1e5);
  });

  test("fits a small drawing whole, and the beginning of a large one", () => {
    const small = drawn(forestOf(8));
    const camera = fitted(small, VIEW, { least: 0.3, most: 1 });
    expect(sizeOf(small).width * camera.scale).toBeLessThan(VIEW.width);
    expect(fitted(drawn(forestOf(900)), VIEW, { least: 0.3, most: 1 }).scale).toBe(0.3);
  });

  test("has few cards, and none at a scale that is too small", () => {
    const stage = stageOf(drawn(forestOf(5_000)));
    expect(stage.cards()?.length).toBeLessThan(100);
    stage.zoom(0.3);
    expect(stage.cards()).toBeNull();
  });

  test("moves a new item out of its parent, and ends the movement", () => {
    const forest = forestOf(2);
    const stage = stageOf(drawn(forest), false);
    forest.add(image("new", "n1", 1_000));
    stage.follow(drawn(forest), null, true, 10);
    const item = stage.layout?.byKey.get("new");
    if (item === undefined) throw new Error("it is not drawn");
    expect(stage.offsetOf(item, 10).x).toBe(-COLUMN_PX);
    expect(stage.isMoving(11)).toBe(true);
    expect(stage.isMoving(1_000)).toBe(false);
    expect(stage.offsetOf(item, 1_000)).toEqual({ x: 0, y: 0 });
  });
});
