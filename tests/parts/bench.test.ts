import { expect, test } from "bun:test";
import { perfProblem } from "../bench/turns.ts";

test("the reason is given when perf cannot record", async () => {
  expect(await perfProblem("/nowhere/perf.data", process.pid)).toMatch(
    /^perf (is not installed|cannot record here: \S)/,
  );
});
