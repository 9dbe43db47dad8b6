import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { LayerId } from "../../../../src/domain/ids.ts";
import type { Segment } from "../../../../src/supervisor/merging/attach-plan.ts";
import { MERGE_COUNT_MAX, mergeDiskBytes, nextMerge } from "../../../../src/supervisor/merging/merge-policy.ts";

const ANY = { countMin: 2, bytesMax: Number.MAX_SAFE_INTEGER, addedBytesMax: Number.MAX_SAFE_INTEGER };
const MIB = 1_048_576;

/** A plan of disks of these sizes; a negative one replaces two layers. */
function planOf(...sizes: readonly number[]): Segment[] {
  let next = 0;
  return sizes.map((size, at) => {
    const first = next;
    const last = size < 0 ? first + 1 : first;
    next = last + 1;
    return { id: `s${at}` as LayerId, sizeBytes: Math.abs(size), entryCount: 0, first, last };
  });
}

/** Makes a chain run by run, with the merges of the policy; returns the longest plan and the copied bytes. */
function grow(sizes: readonly number[], countMin: number, overlap = 0) {
  let plan: Segment[] = planOf(100 * MIB);
  let copiedBytes = 0;
  let longest = 0;
  let mergeCount = 0;
  for (const [at, sizeBytes] of sizes.entries()) {
    plan = [...plan, { id: `r${at}` as LayerId, sizeBytes, entryCount: 1, first: at + 1, last: at + 1 }];
    for (
      let merge = nextMerge(plan, { ...ANY, countMin });
      merge !== null;
      merge = nextMerge(plan, { ...ANY, countMin })
    ) {
      const parts = plan.slice(merge.from, merge.to + 1);
      const total = parts.reduce((sum, part) => sum + part.sizeBytes, 0);
      const largest = Math.max(...parts.map((part) => part.sizeBytes));
      copiedBytes += total;
      mergeCount++;
      const merged = {
        id: `m${at}` as LayerId,
        sizeBytes: largest + (total - largest) * (1 - overlap),
        entryCount: parts.reduce((sum, part) => sum + part.entryCount, 0),
        first: parts[0]?.first ?? 0,
        last: parts.at(-1)?.last ?? 0,
      };
      plan = [...plan.slice(0, merge.from), merged, ...plan.slice(merge.to + 1)];
    }
    longest = Math.max(longest, plan.length);
  }
  return { plan, longest, copiedBytes, mergeCount };
}

describe("the disks that are merged next", () => {
  test("are the last ones, once they have an eighth of the bytes of the disk below them", () => {
    expect(nextMerge(planOf(99, 10, 10, 10), ANY)).toEqual({ from: 1, to: 3 });
    expect(nextMerge(planOf(99, 1000, 10, 10), ANY)).toEqual({ from: 2, to: 3 });
    expect(nextMerge(planOf(99, 159, 10, 10), ANY)).toEqual({ from: 1, to: 3 });
    expect(nextMerge(planOf(1, 160, 10, 10), ANY)).toEqual({ from: 2, to: 3 });
  });

  test("are those below a large one, when there are too few above it", () => {
    expect(nextMerge(planOf(1, 10, 10, 10, 9999, 10), ANY)).toEqual({ from: 1, to: 4 });
    expect(nextMerge(planOf(1, 10, 10, 10, 9999, 10), { ...ANY, bytesMax: 5000 })).toEqual({ from: 1, to: 3 });
    expect(nextMerge(planOf(1, 99_999, 10, 10, 99_999, 10), ANY)).toEqual({ from: 1, to: 4 });
  });

  test("never include the base, and are never too few", () => {
    expect(nextMerge(planOf(1), ANY)).toBeNull();
    expect(nextMerge(planOf(1, 5), ANY)).toBeNull();
    expect(nextMerge(planOf(1, 5, 5), { ...ANY, countMin: 3 })).toBeNull();
    expect(nextMerge(planOf(1, 1000, 100, 10, 1), ANY)).toBeNull();
  });

  test("of a long plan are taken from its lower end, a limited number at a time", () => {
    const plan = planOf(...Array.from({ length: 300 }, () => 10));
    expect(nextMerge(plan, ANY)).toEqual({ from: 1, to: MERGE_COUNT_MAX });
  });

  test("fit the allowed space, in which bytes that are merged already do not count again", () => {
    expect(nextMerge(planOf(1, 10, 10, 10), { ...ANY, bytesMax: 20 })).toEqual({ from: 2, to: 3 });
    expect(nextMerge(planOf(1, -10, 10, 10), { ...ANY, addedBytesMax: 20 })).toEqual({ from: 1, to: 3 });
    expect(nextMerge(planOf(1, 10, 10, 10), { ...ANY, addedBytesMax: 15 })).toBeNull();
    expect(nextMerge(planOf(1, 10, 10), { ...ANY, addedBytesMax: -1 })).toBeNull();
  });

  test("keep a chain of n runs at about log n disks, for about n log n copied bytes", () => {
    for (const [count, most] of [
      [200, 6],
      [1000, 7],
      [5000, 8],
    ] as const) {
      const sizes = Array.from({ length: count }, () => MIB);
      const { longest, copiedBytes } = grow(sizes, 3);
      expect(longest).toBeLessThanOrEqual(most);
      expect(copiedBytes / (count * MIB)).toBeLessThan(5 * Math.log2(count));
    }
  });

  test("keep plans short and copied bytes bounded, for any sizes of the runs", async () => {
    const sizes = fc.array(fc.integer({ min: 65_536, max: 2 ** 30 }), { minLength: 1, maxLength: 400 });
    await fc.assert(
      fc.property(sizes, fc.constantFrom(0, 0.5, 1), (all, overlap) => {
        const { longest, copiedBytes } = grow(all, 3, overlap);
        const total = all.reduce((sum, size) => sum + size, 0);
        // The base, a disk for each time that the size can be divided by eight, and two that are not merged yet.
        expect(longest).toBeLessThanOrEqual(1 + Math.ceil(Math.log(total / 65_536) / Math.log(8)) + 1 + 2);
        expect(copiedBytes).toBeLessThan(12 * total * Math.log2(all.length + 1) + total);
      }),
      { numRuns: 60 },
    );
  });

  test("the disk of a merge has room for all its data, and an inode for every entry", () => {
    const disk = mergeDiskBytes([
      { id: "a" as LayerId, sizeBytes: 100 * MIB, entryCount: 10, first: 1, last: 1 },
      { id: "b" as LayerId, sizeBytes: MIB, entryCount: 1_000_000, first: 2, last: 2 },
    ]);
    expect(disk).toBeGreaterThan(202 * MIB);
    expect(disk / 16_384).toBeGreaterThan(1_000_010);
  });
});
