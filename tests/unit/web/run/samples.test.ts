import { expect, test } from "bun:test";
import { POINTS_MAX, Samples, sinceLast } from "../../../../src/web/run/usage/samples.ts";

const sample = (second: number, cpu = 50, memory = 1000) => ({
  ...{ cpu_time_ms: second * 500, cpu_percent: cpu, memory_bytes: memory, memory_peak_bytes: 2000, pids: 3 },
  at: new Date(second * 1000).toISOString(),
});

test("every sample of a short run is a point", () => {
  const samples = new Samples();
  expect(samples.latest).toBeNull();
  samples.add(sample(1, 10, 100));
  samples.add(sample(2, 30, 300));
  expect(samples.points).toEqual({ at: [1, 2], cpu: [10, 30], memory: [100, 300] });
  expect(samples.latest?.cpu_time_ms).toBe(1000);
});

test("a run of a day has a bounded number of points, from its beginning to its end", () => {
  const samples = new Samples();
  for (let second = 1; second <= 86_400; second += 1) samples.add(sample(second, second % 2 === 0 ? 100 : 0, second));
  const { at, cpu, memory } = samples.points;
  expect(at.length).toBeLessThanOrEqual(POINTS_MAX);
  expect(at.length).toBeGreaterThan(POINTS_MAX / 2 - 1);
  expect([cpu.length, memory.length]).toEqual([at.length, at.length]);
  expect(at[0]).toBeLessThan(300);
  expect(at.at(-1)).toBeGreaterThan(86_100);
  expect(at.every((value, index) => index === 0 || value > (at[index - 1] ?? 0))).toBe(true);
  // The mean of the CPU use, and the highest memory.
  expect(cpu.every((value) => Math.abs(value - 50) < 1)).toBe(true);
  expect(memory.at(-1)).toBe(at.at(-1) as number);
  expect(samples.cpuPeak).toBe(100);
});

test("usage is counted since the previous sample, and starts again with another machine", () => {
  const [first, third, again] = [sample(1, 0), sample(3, 0), { ...sample(4, 7), cpu_time_ms: 10 }];
  expect(sinceLast(null, first)).toEqual(first);
  expect(sinceLast(first, third)).toEqual({ ...third, cpu_percent: 50 });
  expect(sinceLast(third, again)).toEqual(again);
  expect(sinceLast(third, third)).toEqual(third);
});
