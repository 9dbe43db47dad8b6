import { expect, test } from "bun:test";
import { type Row, rowOf } from "../../src/cli/bench/row.ts";
import { type Figures, readFigures, regressions, releaseOf, withRun } from "../bench/figures.ts";

const HERE = "2 cores, 24 GiB, guests emulated";
const ENDS = { from: "a", to: "b" };

function ratio(name: string, value: number, bar: "atMost" | "atLeast" = "atMost"): Row {
  const against = { name: "peer", values: [100] };
  return rowOf({ ...ENDS, name, unit: "ms", values: [100 * value], against, [bar]: bar === "atMost" ? 10 : 0.1 });
}

function absolute(name: string, value: number, unit: string): Row {
  return rowOf({ ...ENDS, name, unit, values: [value], atMost: 1000 });
}

function released(rows: readonly Row[]): Figures {
  return withRun({ releases: [] }, { name: "1.0", machine: HERE, rows });
}

function worse(before: Row, after: Row, machine = HERE): string[] {
  const release = releaseOf(released([before]), {});
  if (release === null) throw new Error("no release");
  return regressions([after], release, machine).map(({ name, text }) => `${name}: ${text}`);
}

test("a row that is more than a tenth worse than the last release is a defect, even within its bar", () => {
  const now = ratio("spawn", 0.0561);
  expect(now.holds).toBe(true);
  expect(worse(ratio("spawn", 0.05), now)).toEqual(["spawn: 0.0561, 0.05 in 1.0: 1.12 times worse"]);
  expect(worse(ratio("spawn", 0.05), ratio("spawn", 0.0549))).toEqual([]);
  expect(worse(ratio("spawn", 0.05), ratio("spawn", 0.01))).toEqual([]);
});

test("a lower rate is worse", () => {
  const [before, less, more] = [1, 0.85, 1.5].map((value) => ratio("download", value, "atLeast")) as [Row, Row, Row];
  expect(worse(before, less)).toEqual(["download: 0.85, 1 in 1.0: 1.18 times worse"]);
  expect(worse(before, more)).toEqual([]);
});

test("compares memory and instructions between machines, but a time without a comparison only on one machine", () => {
  const other = "8 cores, 64 GiB, guests under KVM";
  expect(worse(absolute("idle", 60, "MiB RSS"), absolute("idle", 70, "MiB RSS"), other)).toEqual([
    "idle: 70 MiB RSS, 60 in 1.0: 1.17 times worse",
  ]);
  expect(worse(absolute("task", 10, "ms"), absolute("task", 20, "ms"), other)).toEqual([]);
  expect(worse(absolute("task", 10, "ms"), absolute("task", 20, "ms"))).toHaveLength(1);
});

test("does not compare a row that the release lacks, or had without a comparison", () => {
  expect(worse(ratio("spawn", 0.01), ratio("start", 2))).toEqual([]);
  expect(worse(absolute("start", 1, "ms"), ratio("start", 2))).toEqual([]);
});

test("uses the median of the runs of a release", () => {
  const runs = [0.05, 0.09, 0.06].map((value) => ratio("spawn", value));
  let figures: Figures = { releases: [] };
  for (const row of runs) figures = withRun(figures, { name: "1.0", machine: HERE, rows: [row, ratio("list", 1)] });
  expect(figures.releases.map(({ name, rows }) => [name, rows["spawn"]])).toEqual([
    ["1.0", { unit: "ratio", values: [0.05, 0.09, 0.06] }],
  ]);
  const release = releaseOf(figures, {});
  expect(release === null ? null : regressions([ratio("spawn", 0.065)], release, HERE)).toEqual([]);
  expect(release === null ? null : regressions([ratio("spawn", 0.067)], release, HERE)).toHaveLength(1);
  // A part leaves the other rows as they are.
  const more = withRun(figures, { name: "1.0", machine: HERE, rows: [ratio("spawn", 0.06)] });
  expect(more.releases[0]?.rows["list"]?.values).toHaveLength(3);
  expect(() => withRun(figures, { name: "1.0", machine: "another", rows: [] })).toThrow("another machine");
});

test("compares a run with the last release or with a named one, but not with itself", () => {
  let figures: Figures = { releases: [] };
  for (const name of ["1.0", "1.1"]) figures = withRun(figures, { name, machine: HERE, rows: [] });
  expect(releaseOf(figures, {})?.name).toBe("1.1");
  expect(releaseOf(figures, { recorded: "1.1" })?.name).toBe("1.0");
  expect(releaseOf(figures, { named: "1.0" })?.name).toBe("1.0");
  expect(() => releaseOf(figures, { named: "2.0" })).toThrow("no figures of 2.0; there are 1.0,1.1");
  expect(releaseOf({ releases: [] }, {})).toBeNull();
});

test("the recorded figures have a machine and values for every row", () => {
  for (const { machine, rows } of readFigures().releases) {
    expect(machine).toMatch(/\d+ cores, \d+ GiB, guests (?:emulated|under KVM)/);
    for (const { unit, values } of Object.values(rows)) {
      expect(unit).not.toBe("");
      expect(values.length).toBeGreaterThan(0);
      expect(values.every((value) => Number.isFinite(value) && value > 0)).toBe(true);
    }
  }
});
