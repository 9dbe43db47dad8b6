/** Measured values of one thing, all of one unit. */
export interface Figure {
  readonly median: number;
  /** the values that a tenth lies below and a tenth above */
  readonly low: number;
  readonly high: number;
  readonly count: number;
  readonly unit: string;
}

export interface Row {
  readonly name: string;
  /** the two end points that the figure lies between */
  readonly from: string;
  readonly to: string;
  readonly figure: Figure;
  /** what it is compared with, measured in the same run; null: the bar is absolute */
  readonly against: { readonly name: string; readonly figure: Figure } | null;
  /** what is held to the bar: of two figures, or the figure itself */
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

/** Of sorted values, between neighbours where it falls there. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const place = (sorted.length - 1) * share;
  const below = sorted[Math.floor(place)] ?? Number.NaN;
  const above = sorted[Math.ceil(place)] ?? Number.NaN;
  return below + (above - below) * (place - Math.floor(place));
}

export function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

export function figureOf(values: readonly number[], unit: string): Figure {
  if (values.length === 0) throw new Error("nothing was measured");
  return {
    median: median(values),
    low: quantile(values, 0.1),
    high: quantile(values, 0.9),
    count: values.length,
    unit,
  };
}

/** A line of the table: the ratio of the medians, or the median itself, held to its bar. */
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
  return { name, from, to, figure, against: base, value, bar, holds, ...(note === undefined ? {} : { note }) };
}

/** Time that `work` takes, in `milliseconds`. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await work();
  return performance.now() - startedAt;
}

/** Measures each in turn, `count` times round, so that what else the machine does hits all alike. */
export async function interleaved<Name extends string>(
  count: number,
  subjects: Readonly<Record<Name, () => Promise<number>>>,
): Promise<Record<Name, number[]>> {
  const names = Object.keys(subjects) as Name[];
  const values = Object.fromEntries(names.map((name) => [name, [] as number[]])) as Record<Name, number[]>;
  for (let round = 0; round < count; round++) {
    for (const name of names) values[name].push(await subjects[name]());
  }
  return values;
}
