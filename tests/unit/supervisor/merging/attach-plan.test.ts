import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { LayerId } from "../../../../src/domain/ids.ts";
import { type ChainLayer, type MergedLayer, planAttach } from "../../../../src/supervisor/merging/attach-plan.ts";

const id = (position: number) => `l${position}` as LayerId;
const chainOf = (length: number): ChainLayer[] =>
  Array.from({ length }, (_, at) => ({ id: id(at), sizeBytes: 10, entryCount: 1 }));
const mergedLayer = (below: number, top: number, sizeBytes = 5): MergedLayer => ({
  id: `m${below}-${top}` as LayerId,
  belowId: id(below),
  topId: id(top),
  sizeBytes,
  entryCount: 1,
});
const ids = (length: number, mergedLayers: readonly MergedLayer[]) =>
  planAttach(chainOf(length), mergedLayers).map((s) => s.id as string);

describe("the plan of the disks to attach", () => {
  test("is the chain itself when there is no merged layer", () => {
    expect(ids(3, [])).toEqual(["l0", "l1", "l2"]);
  });

  test("has as few disks as possible, and then as few bytes", () => {
    expect(ids(7, [mergedLayer(0, 4), mergedLayer(2, 6), mergedLayer(4, 6)])).toEqual(["l0", "m0-4", "m4-6"]);
    expect(ids(5, [mergedLayer(0, 2, 50), mergedLayer(2, 4, 50), mergedLayer(0, 3, 5)])).toEqual(["l0", "m0-3", "l4"]);
  });

  test("leaves out merged layers of other chains, and those that would replace the base", () => {
    const foreign = { ...mergedLayer(0, 2), topId: "elsewhere" as LayerId };
    expect(ids(4, [foreign, mergedLayer(3, 1), mergedLayer(2, 2)])).toEqual(["l0", "l1", "l2", "l3"]);
  });

  test("covers every layer once, and no other plan has fewer disks", async () => {
    const pairs = fc.array(fc.tuple(fc.nat(9), fc.nat(9)), { maxLength: 8 });
    await fc.assert(
      fc.property(fc.integer({ min: 1, max: 10 }), pairs, (length, runs) => {
        const usable = runs.filter(([below, top]) => below < top && top < length);
        const plan = planAttach(
          chainOf(length),
          runs.map(([below, top]) => mergedLayer(below, top)),
        );
        const positions = plan.flatMap(({ first, last }) =>
          Array.from({ length: last - first + 1 }, (_, at) => first + at),
        );
        expect(positions).toEqual(Array.from({ length }, (_, at) => at));
        expect(plan[0]).toMatchObject({ id: id(0), last: 0 });
        // Tries every possible plan.
        const fewest = (from: number): number => {
          if (from === length) return 0;
          const ways = usable.filter(([below]) => below === from - 1).map(([, top]) => fewest(top + 1));
          return 1 + Math.min(fewest(from + 1), ...ways);
        };
        expect(plan.length).toBe(fewest(0));
      }),
    );
  });
});
