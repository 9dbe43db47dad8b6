import { readFileSync } from "node:fs";
import { cpus, totalmem } from "node:os";
import { join } from "node:path";
import { median } from "../../src/cli/bench/measure.ts";
import type { Row } from "../../src/cli/bench/row.ts";

export const FIGURES = join(import.meta.dir, "figures.json");

/** The measurements of one row. */
export interface ReleaseRow {
  /** unit of the values: "ratio" where the row is compared with another of the same run */
  readonly unit: string;
  /** the value that each run held to the bar */
  readonly values: readonly number[];
}

/** The benchmark's results for a release. */
export interface Release {
  readonly name: string;
  /** where it was measured */
  readonly machine: string;
  /** by the name of the row */
  readonly rows: Readonly<Record<string, ReleaseRow>>;
}

/** All releases, the oldest first. */
export interface Figures {
  readonly releases: readonly Release[];
}

/** A row that got worse by more than a tenth. */
export interface Regression {
  readonly name: string;
  readonly text: string;
}

const WORSE_MAX = 1.1;
const RATIO = "ratio";
/** Significant digits of a value. */
const DIGITS = 4;

export function readFigures(): Figures {
  return JSON.parse(readFileSync(FIGURES, "utf8")) as Figures;
}

/** The release to compare with: the last one, or the one of that name; never the one that is being recorded. */
export function releaseOf(
  { releases }: Figures,
  { named, recorded }: { readonly named?: string | undefined; readonly recorded?: string | undefined },
): Release | null {
  if (named === undefined) return releases.findLast(({ name }) => name !== recorded) ?? null;
  const release = releases.find(({ name }) => name === named);
  if (release === undefined) throw new Error(`no figures of ${named}; there are ${releases.map(({ name }) => name)}`);
  return release;
}

/** The machine that this runs on, in so far as figures depend on it. */
export function machineText(isolation: string): string {
  const memory = Math.round(totalmem() / 1024 ** 3);
  return `${cpus().length} cores, ${memory} GiB, guests ${isolation === "vm" ? "under KVM" : "emulated"}`;
}

/**
 * The rows that are worse by more than a tenth than the median of a release, whether or not they hold their bar. A time
 * without a comparison says nothing on another machine.
 */
export function regressions(rows: readonly Row[], release: Release, machine: string): Regression[] {
  return rows.flatMap((row) => {
    const last = release.rows[row.name];
    if (last === undefined || last.unit !== unitOf(row)) return [];
    if (last.unit === "ms" && release.machine !== machine) return [];
    const before = median(last.values);
    const times = row.bar.compare === "<=" ? row.value / before : before / row.value;
    if (times <= WORSE_MAX) return [];
    const unit = last.unit === RATIO ? "" : ` ${last.unit}`;
    const text = `${short(row.value)}${unit}, ${short(before)} in ${release.name}: ${times.toFixed(2)} times worse`;
    return [{ name: row.name, text }];
  });
}

/** The figures with those of one more run. Runs of one name and machine add to each other: their median counts. */
export function withRun(
  figures: Figures,
  { name, machine, rows }: { readonly name: string; readonly machine: string; readonly rows: readonly Row[] },
): Figures {
  const earlier = figures.releases.find((release) => release.name === name);
  if (earlier !== undefined && earlier.machine !== machine) {
    throw new Error(`the figures of ${name} are of another machine: ${earlier.machine}`);
  }
  const added = rows.map((row) => {
    const unit = unitOf(row);
    const last = earlier?.rows[row.name];
    const before = last?.unit === unit ? last.values : [];
    return [row.name, { unit, values: [...before, short(row.value)] }] as const;
  });
  const release = { name, machine, rows: { ...earlier?.rows, ...Object.fromEntries(added) } };
  const { releases } = figures;
  return {
    releases:
      earlier === undefined ? [...releases, release] : releases.map((each) => (each === earlier ? release : each)),
  };
}

function short(value: number): number {
  return Number(value.toPrecision(DIGITS));
}

function unitOf({ against, figure }: Row): string {
  return against === null ? figure.unit : RATIO;
}
