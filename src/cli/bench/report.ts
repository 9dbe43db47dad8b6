import type { Figure } from "./measure.ts";
import type { Finding, Remark, Row } from "./row.ts";

function figureText({ median, low, high, unit }: Figure): string {
  return `${shortNumber(median)} ${unit} (${shortNumber(low)}-${shortNumber(high)})`;
}

export function shortNumber(value: number): string {
  if (Math.abs(value) >= 100) return value.toFixed(0);
  if (Math.abs(value) >= 10) return value.toFixed(1);
  return value.toFixed(Math.abs(value) >= 0.1 || value === 0 ? 2 : 3);
}

/** A finding as lines for a person, the end points of a row in the last one. */
export function findingText(finding: Finding): string {
  if ("figure" in finding) return rowText(finding);
  return remarkText(finding.name, "isMissing" in finding ? `not measured: ${finding.text}` : finding.text);
}

function remarkText(name: string, text: string): string {
  return `       ${name}: ${text}`;
}

function rowText({ name, figure, against, value, bar, holds, from, to, note }: Row): string {
  const verdict = holds ? "holds " : "MISSES";
  const compared = against === null ? "" : ` against ${against.name}: ${figureText(against.figure)},`;
  const unit = against === null ? ` ${figure.unit}` : "";
  return [
    `${verdict} ${name}`,
    `       ${figureText(figure)}, n=${figure.count};${compared} ${shortNumber(value)}${unit}, bar ${bar.compare} ${bar.limit}`,
    `       from ${from} to ${to}${note === undefined ? "" : `; ${note}`}`,
  ].join("\n");
}

/** All findings, and how many bars hold. */
export function benchText(findings: {
  readonly rows: readonly Row[];
  readonly remarks: readonly Remark[];
  readonly missing: readonly Remark[];
  readonly failures: readonly Remark[];
}): string {
  const { rows, remarks, missing, failures } = findings;
  const held = rows.filter(({ holds }) => holds).length;
  return [
    ...rows.map(rowText),
    ...remarks.map(({ name, text }) => remarkText(name, text)),
    ...missing.map(({ name, text }) => remarkText(`not measured: ${name}`, text)),
    `${held} of ${rows.length} bars hold`,
    ...failures.map(({ name, text }) => `FAILED ${name}: ${text}`),
    "",
  ].join("\n");
}

/** A figure without a bar. */
export function remarkOf(name: string, figure: Figure, ends: string): Remark {
  return { name, text: `${figureText(figure)}, n=${figure.count}; ${ends}` };
}

const PHASES = ["queue", "clone", "attach", "mount", "files", "exec", "freeze", "index", "publish"];
const METRIC = "coppice_spawn_phase_seconds";

/** The value of a sample of /metrics by its name and labels; null when there is none. */
export function sampleOf(text: string, sample: string): number | null {
  const line = text.split("\n").find((candidate) => candidate.startsWith(`${sample} `));
  return line === undefined ? null : Number(line.slice(sample.length));
}

/** Mean `milliseconds` of each step of the spawns between two looks at /metrics, in their order. */
export function phaseMeans(before: string, after: string): string {
  return PHASES.flatMap((phase) => {
    const grown = (part: string): number => {
      const sample = `${METRIC}_${part}{phase="${phase}"}`;
      return (sampleOf(after, sample) ?? 0) - (sampleOf(before, sample) ?? 0);
    };
    const count = grown("count");
    return count === 0 ? [] : [`${phase} ${shortNumber((grown("sum") / count) * 1000)}`];
  }).join(", ");
}
