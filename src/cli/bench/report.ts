import type { Figure, Row } from "./figures.ts";

/** A line that belongs to no bar: a breakdown, a rate. */
export interface Remark {
  readonly name: string;
  readonly text: string;
}

function figureText({ median, low, high, unit }: Figure): string {
  return `${shortNumber(median)} ${unit} (${shortNumber(low)}-${shortNumber(high)})`;
}

export function shortNumber(value: number): string {
  if (Math.abs(value) >= 100) return value.toFixed(0);
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
}

/** A row as lines for a person, its end points in the last one. */
export function rowText({ name, figure, against, value, bar, holds, from, to, note }: Row): string {
  const verdict = holds ? "holds " : "MISSES";
  const compared = against === null ? "" : ` against ${against.name}: ${figureText(against.figure)},`;
  const unit = against === null ? ` ${figure.unit}` : "";
  return [
    `${verdict} ${name}`,
    `       ${figureText(figure)}, n=${figure.count};${compared} ${shortNumber(value)}${unit}, bar ${bar.compare} ${bar.limit}`,
    `       from ${from} to ${to}${note === undefined ? "" : `; ${note}`}`,
  ].join("\n");
}

export function reportText(rows: readonly Row[], remarks: readonly Remark[]): string {
  const missed = rows.filter(({ holds }) => !holds).length;
  const summary = `${rows.length - missed} of ${rows.length} bars hold`;
  const below = remarks.map(({ name, text }) => `       ${name}: ${text}`);
  return `${[...rows.map(rowText), ...below, summary].join("\n")}\n`;
}

/** The same with what could not be measured, and why. */
export function benchText(shown: {
  readonly rows: readonly Row[];
  readonly remarks: readonly Remark[];
  readonly missing: readonly Remark[];
  readonly failures: readonly Remark[];
}): string {
  const missing = shown.missing.map(({ name, text }) => ({ name: `not measured: ${name}`, text }));
  const failures = shown.failures.map(({ name, text }) => `FAILED ${name}: ${text}\n`);
  return `${reportText(shown.rows, [...shown.remarks, ...missing])}${failures.join("")}`;
}

/** A figure without a bar. */
export function remarkOf(name: string, figure: Figure, ends: string): Remark {
  return { name, text: `${figureText(figure)}, n=${figure.count}; ${ends}` };
}

const PHASES = ["queue", "clone", "attach", "mount", "files", "exec", "freeze", "index", "publish"];
const METRIC = "coppice_spawn_phase_seconds";

/** Mean `milliseconds` of each step of the spawns between two looks at /metrics, in their order. */
export function phaseMeans(before: string, after: string): string {
  return PHASES.flatMap((phase) => {
    const grown = (part: string): number => {
      const sample = `${METRIC}_${part}{phase="${phase}"} `;
      const value = (text: string): number =>
        Number(
          text
            .split("\n")
            .find((line) => line.startsWith(sample))
            ?.slice(sample.length) ?? 0,
        );
      return value(after) - value(before);
    };
    const count = grown("count");
    return count === 0 ? [] : [`${phase} ${shortNumber((grown("sum") / count) * 1000)}`];
  }).join(", ");
}
