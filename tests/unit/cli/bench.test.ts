import { expect, test } from "bun:test";
import { figureOf, interleaved, quantile } from "../../../src/cli/bench/measure.ts";
import { benchText, phaseMeans } from "../../../src/cli/bench/report.ts";
import { rowOf } from "../../../src/cli/bench/row.ts";

test("quantiles lie between neighbours", () => {
  expect(quantile([4, 1, 3, 2], 0.5)).toBe(2.5);
  expect(quantile([10], 0.9)).toBe(10);
  expect(figureOf([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], "ms")).toMatchObject({ median: 6, low: 2, high: 10, count: 11 });
  expect(() => figureOf([], "ms")).toThrow("nothing was measured");
});

test("the bar of a row applies to the ratio of the medians or to the figure", () => {
  const ends = { name: "x", from: "a", to: "b", unit: "ms" };
  const against = { name: "y", values: [100, 200, 300] };
  expect(rowOf({ ...ends, values: [30, 20, 40], against, atMost: 0.15 })).toMatchObject({ value: 0.15, holds: true });
  expect(rowOf({ ...ends, values: [31], against, atMost: 0.15 }).holds).toBe(false);
  expect(rowOf({ ...ends, values: [160], against, atLeast: 0.8 })).toMatchObject({ value: 0.8, holds: true });
  expect(rowOf({ ...ends, values: [5.1], atMost: 5 })).toMatchObject({ against: null, value: 5.1, holds: false });
  expect(() => rowOf({ ...ends, values: [1] })).toThrow("one bar is needed");
});

test("subjects are measured in turn", async () => {
  const order: string[] = [];
  const subject = (name: string) => async () => order.push(name);
  expect(await interleaved(2, { a: subject("a"), b: subject("b") })).toEqual({ a: [1, 3], b: [2, 4] });
  expect(order).toEqual(["a", "b", "a", "b"]);
});

test("the report has the figure, comparison, bar and both end points", () => {
  const against = { name: "bare", values: [200] };
  const row = rowOf({ name: "spawn", from: "sent", to: "read", unit: "ms", values: [20], against, atMost: 0.15 });
  expect(benchText({ rows: [row], remarks: [{ name: "steps", text: "exec 3" }], missing: [], failures: [] })).toBe(
    [
      "holds  spawn",
      "       20.0 ms (20.0-20.0), n=1; against bare: 200 ms (200-200), 0.10, bar <= 0.15",
      "       from sent to read",
      "       steps: exec 3",
      "1 of 1 bars hold\n",
    ].join("\n"),
  );
});

test("the report says which rows were not measured and why, and which part failed", () => {
  const missing = [{ name: "start", text: "not here" }];
  expect(benchText({ rows: [], remarks: [], missing, failures: [{ name: "chain", text: "no room" }] })).toBe(
    "       not measured: start: not here\n0 of 0 bars hold\nFAILED chain: no room\n",
  );
});

test("means of steps cover the time between two readings", () => {
  const metrics = (sum: number, count: number) =>
    `coppice_spawn_phase_seconds_sum{phase="exec"} ${sum}\ncoppice_spawn_phase_seconds_count{phase="exec"} ${count}\n`;
  expect(phaseMeans(metrics(1, 10), metrics(1.5, 15))).toBe("exec 100");
  expect(phaseMeans("", metrics(0.5, 2))).toBe("exec 250");
  expect(phaseMeans("", "")).toBe("");
});
