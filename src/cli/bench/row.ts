import { given } from "../../domain/given.ts";
import { type Figure, figureOf } from "./measure.ts";

export interface Row {
  readonly name: string;
  /** the two end points that the figure lies between */
  readonly from: string;
  readonly to: string;
  readonly figure: Figure;
  /** the compared figure, measured in the same run; null: the bar is absolute */
  readonly against: { readonly name: string; readonly figure: Figure } | null;
  /** the value that the bar bounds: the ratio of two figures, or the figure itself */
  readonly value: number;
  readonly bar: { readonly compare: "<=" | ">="; readonly limit: number };
  readonly holds: boolean;
  readonly note?: string;
}

export interface RowOptions {
  readonly name: string;
  readonly from: string;
  readonly to: string;
  readonly values: readonly number[];
  readonly unit: string;
  readonly against?: { readonly name: string; readonly values: readonly number[] };
  readonly atMost?: number;
  readonly atLeast?: number;
  readonly note?: string;
}

/** A line of the table: the ratio of the medians, or the median itself, with its bar. */
export function rowOf(options: RowOptions): Row {
  const { name, from, to, values, unit, against, atMost, atLeast, note } = options;
  if ((atMost === undefined) === (atLeast === undefined)) throw new Error(`${name}: one bar is needed`);
  const figure = figureOf(values, unit);
  const base = against === undefined ? null : { name: against.name, figure: figureOf(against.values, unit) };
  const value = base === null ? figure.median : figure.median / base.figure.median;
  const bar =
    atMost === undefined
      ? ({ compare: ">=", limit: atLeast ?? 0 } as const)
      : ({ compare: "<=", limit: atMost } as const);
  const holds = bar.compare === "<=" ? value <= bar.limit : value >= bar.limit;
  return { name, from, to, figure, against: base, value, bar, holds, ...given({ note }) };
}

/** A line without a bar: a breakdown, a rate. */
export interface Remark {
  readonly name: string;
  readonly text: string;
}

/** A row that cannot be measured here, or not compared, and why. */
export interface Missing extends Remark {
  readonly isMissing: true;
}

/** One result of a part of the benchmark. */
export type Finding = Row | Remark | Missing;

export function missing(name: string, text: string): Missing {
  return { name, text, isMissing: true };
}
