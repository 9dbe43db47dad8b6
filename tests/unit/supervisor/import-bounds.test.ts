import { describe, expect, test } from "bun:test";
import {
  importCost,
  pullLimits,
  TOOLS_MEMORY_BYTES,
  toolsLimits,
} from "../../../src/supervisor/imports/import-bounds.ts";
import { type Cost, costOf, Scheduler } from "../../../src/supervisor/operations/scheduler.ts";
import { CpuWeight } from "../../../src/vm/cpu-weight.ts";

const MIB = 1_048_576;
const GIB = 1024 * MIB;
const SHAPE = { vcpus: 1, memoryBytes: 512 * MIB };
const MACHINE = costOf(SHAPE);

/** The number of `costs` that a host admits at once. */
async function admitted(budgetBytes: number, costs: readonly Cost[]): Promise<number> {
  const scheduler = new Scheduler({ memoryBytes: budgetBytes, vcpus: 64 }, () => 0);
  const { signal } = new AbortController();
  for (const cost of costs) void scheduler.admit("one", cost, signal);
  await new Promise<void>((resolve) => setImmediate(resolve));
  return scheduler.runningCount;
}
const times = <T>(count: number, value: T): T[] => Array.from({ length: count }, () => value);

describe("an import", () => {
  test("is admitted with the memory that its programs may use, so that all imports stay within the budget", async () => {
    for (const budgetBytes of [4 * GIB, 12 * GIB, 18 * GIB, 100 * GIB]) {
      const count = await admitted(budgetBytes, times(64, importCost(SHAPE, budgetBytes)));
      expect(count).toBe(Math.floor(budgetBytes / TOOLS_MEMORY_BYTES));
      expect(count * Number(toolsLimits(importCost(SHAPE, budgetBytes)).memoryBytes)).toBeLessThanOrEqual(budgetBytes);
    }
  });

  test("runs at the same time as two machines on a host of 4 GiB, and as another import", async () => {
    const budgetBytes = 3 * GIB;
    const cost = importCost(SHAPE, budgetBytes);
    expect(await admitted(budgetBytes, [cost, MACHINE, MACHINE])).toBe(3);
    expect(await admitted(budgetBytes, [cost, cost])).toBe(2);
  });

  test("fits every host that its machine fits", () => {
    for (const memoryBytes of [MACHINE.memoryBytes, MACHINE.memoryBytes + 1, GIB, 3 * GIB, 64 * GIB]) {
      const scheduler = new Scheduler({ memoryBytes, vcpus: 1 }, () => 0);
      expect(scheduler.fitsEver(importCost(SHAPE, memoryBytes))).toBe(true);
    }
    const scheduler = new Scheduler({ memoryBytes: MACHINE.memoryBytes - 1, vcpus: 1 }, () => 0);
    expect(scheduler.fitsEver(importCost(SHAPE, MACHINE.memoryBytes - 1))).toBe(false);
  });

  test("is admitted with its machine's memory where that exceeds the programs'", () => {
    const shape = { vcpus: 3, memoryBytes: 4 * GIB };
    expect(importCost(shape, 100 * GIB)).toEqual(costOf(shape));
  });
});

test("the programs of an import get the memory it was admitted with, and the processors of one machine", () => {
  const limits = (budgetBytes: number, shape = SHAPE) => toolsLimits(importCost(shape, budgetBytes));
  expect(limits(100 * GIB)).toMatchObject({ memoryBytes: TOOLS_MEMORY_BYTES, cpuWeight: CpuWeight.inUse });
  for (const budgetBytes of [MACHINE.memoryBytes, GIB, 2 * GIB, 3 * GIB, 4 * GIB, 100 * GIB]) {
    expect(limits(budgetBytes).memoryBytes).toBe(importCost(SHAPE, budgetBytes).memoryBytes);
  }
  // The machine needs more than any program gets.
  expect(limits(100 * GIB, { vcpus: 1, memoryBytes: 4 * GIB }).memoryBytes).toBe(TOOLS_MEMORY_BYTES);
});

test("a pull may have more files than an image, and a minimum however few an image may have", () => {
  const few = pullLimits({ bytesMax: 1000, entriesMax: 3 }, 7);
  expect(few).toMatchObject({ bytesMax: 2007, entriesMax: 65_536 });
  expect(few.refusals?.bytes).toContain(" 1000 bytes that the operator allows");
  expect(few.refusals?.entries).toContain(" 65536 files");
  expect(pullLimits({ bytesMax: 1000, entriesMax: 10_000_000 }, 0).entriesMax).toBe(few.entriesMax);
});
