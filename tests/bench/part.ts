import type { Row } from "../../src/cli/bench/figures.ts";
import type { Remark } from "../../src/cli/bench/report.ts";

/** What a part of the benchmark gives: a line of the table, or one below it. */
export type Finding = Row | Remark;

export function isRow(finding: Finding): finding is Row {
  return "figure" in finding;
}
