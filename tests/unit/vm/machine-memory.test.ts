import { describe, expect, test } from "bun:test";
import { costOf, Scheduler } from "../../../src/supervisor/operations/scheduler.ts";
import { machineMemoryBytes, TEMPLATES_BYTES_MAX, templatesMemoryBytes } from "../../../src/vm/machine-memory.ts";

const MIB = 1_048_576;
const GIB = 1024 * MIB;

describe("a machine", () => {
  test("is admitted with the memory that its control group allows", () => {
    expect(costOf({ vcpus: 3, memoryBytes: 512 * MIB })).toEqual({
      vcpus: 3,
      memoryBytes: machineMemoryBytes({ vcpus: 3, memoryBytes: 512 * MIB }),
    });
    // Sizes of machines are powers of two.
    expect(costOf({ vcpus: 1, memoryBytes: 513 * MIB })).toEqual(costOf({ vcpus: 1, memoryBytes: GIB }));
    expect(costOf({ vcpus: 1, memoryBytes: 1 })).toEqual(costOf({ vcpus: 1, memoryBytes: 128 * MIB }));
  });

  test("has room for the guest's memory, 64 MiB of translated code, and 64 MiB more", () => {
    for (const memoryBytes of [128 * MIB, 512 * MIB, 8 * GIB]) {
      const overhead = machineMemoryBytes({ vcpus: 1, memoryBytes }) - memoryBytes;
      expect(overhead).toBeGreaterThanOrEqual(128 * MIB);
      expect(overhead % 4096).toBe(0);
    }
  });

  test("of any shape counts: all admitted machines together stay within the budget", () => {
    const shapes = [128, 200, 512, 1024, 3000].map((mib, index) => ({ vcpus: 1 + index, memoryBytes: mib * MIB }));
    const scheduler = new Scheduler({ memoryBytes: 6 * GIB, vcpus: 1000 }, () => 0);
    const { signal } = new AbortController();
    for (let round = 0; round < 20; round++) {
      for (const shape of shapes) void scheduler.admit(`${round}`, costOf(shape), signal);
    }
    expect(scheduler.runningCount).toBeGreaterThan(5);
    expect(scheduler.used.memoryBytes).toBeLessThanOrEqual(6 * GIB);
  });
});

test("templates may use an eighth of the budget, but at least one template's size and at most a GiB", () => {
  expect(templatesMemoryBytes(6 * GIB)).toBe(768 * MIB);
  expect(templatesMemoryBytes(256 * MIB)).toBe(128 * MIB);
  expect(templatesMemoryBytes(1024 * GIB)).toBe(TEMPLATES_BYTES_MAX);
});
