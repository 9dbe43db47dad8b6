import type { ComponentChildren } from "preact";
import { createClock } from "../browser/clock.ts";
import { ageText, bytesText, countText, durationText, timeText } from "../text/format.ts";
import { classes } from "./classes.ts";

export interface FigureProps {
  readonly label: ComponentChildren;
  readonly value: ComponentChildren;
  /** the whole that the value is a part of, or its origin */
  readonly note?: ComponentChildren;
}

/** One figure with its name above it; several of them stand in a `<dl class="figures">`. */
export function Figure({ label, value, note }: FigureProps) {
  return (
    <div class="figure">
      <dt class="muted small">{label}</dt>
      <dd class="large medium tabular">
        {value}
        {note === undefined ? null : <span class="figure-note block muted small">{note}</span>}
      </dd>
    </div>
  );
}

/** A number of bytes; the title has the exact one. */
export function Bytes({ value, isSigned }: { readonly value: number | null | undefined; readonly isSigned?: boolean }) {
  if (value === undefined || value === null) return <Absent />;
  const sign = isSigned === true && value > 0 ? "+" : "";
  return (
    <span class="number" title={`${countText(value)} bytes`}>
      {sign}
      {bytesText(value)}
    </span>
  );
}

/** A length of time in `milliseconds`. */
export function Duration({ value }: { readonly value: number | null | undefined }) {
  if (value === undefined || value === null) return <Absent />;
  return (
    <span class="number" title={`${countText(Math.round(value))} ms`}>
      {durationText(value)}
    </span>
  );
}

/** A missing value, drawn as a dash. */
function Absent() {
  return (
    <span class="absent">
      <span aria-hidden="true">–</span>
      <span class="visually-hidden">none</span>
    </span>
  );
}

/** The time, updated twice a minute. */
const useClock = createClock(30_000);

export interface AgeProps {
  /** in the form of RFC 3339, or `milliseconds` since the epoch */
  readonly at: string | number | null | undefined;
  readonly class?: string;
}

/** How long ago something happened; the title has the exact time. */
export function Age({ at, class: name }: AgeProps) {
  const now = useClock();
  if (at === undefined || at === null) return <Absent />;
  const time = typeof at === "number" ? at : Date.parse(at);
  if (Number.isNaN(time)) return <Absent />;
  return (
    <time class={classes("number", name)} dateTime={new Date(time).toISOString()} title={timeText(time)}>
      {ageText(time, Math.max(now, Date.now()))}
    </time>
  );
}
