/** Measured values of one thing, all of one unit. */
export interface Figure {
  readonly median: number;
  /** the values that a tenth lies below and a tenth above */
  readonly low: number;
  readonly high: number;
  readonly count: number;
  readonly unit: string;
}

/** A quantile of sorted values, interpolated between neighbours. */
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

/** Time that `work` takes, in `milliseconds`. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await work();
  return performance.now() - startedAt;
}

/** Measures each in turn, in `count` rounds, so that other load of the machine affects all equally. */
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
