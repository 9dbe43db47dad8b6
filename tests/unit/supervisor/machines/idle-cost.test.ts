import { expect, test } from "bun:test";
import type { CgroupStats } from "../../../../src/cgroup/stats.ts";
import { poolFinding } from "../../../../src/supervisor/health/trials.ts";
import { idleCost } from "../../../../src/supervisor/machines/idle-cost.ts";

const used = (cpuTimeMs: number, memoryBytes: number): CgroupStats => ({
  cpuTimeMs,
  memoryBytes,
  memoryPeakBytes: memoryBytes,
  cacheBytes: 0,
  pids: 1,
});

/** A pool whose clones have used these processor times, one after the other. */
function poolOf(...looks: Record<string, CgroupStats>[]) {
  const usage = async () => new Map(Object.entries(looks.shift() ?? {}));
  return { usage, readyCount: 2, waitingCount: 2 };
}

test("the idle cost is that of one machine on average", async () => {
  const pool = poolOf({ a: used(100, 0), b: used(500, 0) }, { a: used(101, 10), b: used(501, 30) });
  const cost = await idleCost(pool, 100);
  expect(cost).toMatchObject({ count: 2, memoryBytes: 20 });
  // 1 ms in 100, or in however much longer the sleep takes here.
  expect(cost?.cpuPercent).toBeWithin(Number.MIN_VALUE, 1.1);
});

test("an empty or a busy pool has no idle cost", async () => {
  expect(await idleCost(poolOf(), 1)).toBeNull();
  expect(await idleCost(poolOf({ a: used(1, 1) }, { b: used(1, 1) }), 1)).toBeNull();
  expect(await idleCost({ ...poolOf({ a: used(1, 1) }, { a: used(1, 1) }), readyCount: 1 }, 1)).toBeNull();
});

test("doctor prints it", () => {
  expect(poolFinding(null)).toEqual([]);
  const [finding] = poolFinding(JSON.stringify({ at: 1, count: 2, memoryBytes: 22_020_096, cpuPercent: 0.4 }));
  expect(finding?.summary).toBe("2 machines wait: 21 MiB and 0.4 % of a CPU each, when last measured");
});
