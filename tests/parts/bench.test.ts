import { expect, test } from "bun:test";
import { perfProblem } from "../bench/turns.ts";

test("where perf cannot record, the reason is told", async () => {
  expect(await perfProblem("/nowhere/perf.data", process.pid)).toMatch(
    /^perf (is not installed|cannot record here: \S)/,
  );
});
