import { useEffect, useRef, useState } from "preact/hooks";
import { useColors, useTheme } from "../../browser/theme.ts";
import { bytesText, durationText } from "../../text/format.ts";
import type { Chart } from "./chart.ts";
import type { UsageSeries } from "./use-usage.ts";

/** CPU and memory of a run, live. */
export function UsageCharts({ series }: { readonly series: UsageSeries }) {
  const { samples } = series;
  const { latest } = samples;
  const { at, cpu, memory } = samples.points;
  if (latest === null) return <p class="muted">Figures appear when the command starts.</p>;
  return (
    <div class="run-charts">
      <LineChart
        label="CPU"
        color="--chart-1"
        at={at}
        values={cpu}
        least={100}
        text={percentText}
        steps={PERCENT_STEPS}
        summary={`now ${percentText(latest.cpu_percent)}, peak ${percentText(samples.cpuPeak)}, ${durationText(latest.cpu_time_ms)} in all`}
      />
      <LineChart
        label="Memory"
        color="--chart-2"
        at={at}
        values={memory}
        least={16_777_216}
        text={bytesText}
        steps={BYTE_STEPS}
        summary={`now ${bytesText(latest.memory_bytes)}, peak ${bytesText(latest.memory_peak_bytes)}`}
      />
    </div>
  );
}

function percentText(value: number): string {
  return `${value < 9.95 ? value.toFixed(1) : value.toFixed(0)} %`;
}

interface LineChartProps {
  readonly label: string;
  readonly color: "--chart-1" | "--chart-2";
  readonly at: readonly number[];
  readonly values: readonly number[];
  readonly least: number;
  readonly text: (value: number) => string;
  /** possible steps between the labels of its axis */
  readonly steps: readonly number[];
  /** the chart in words */
  readonly summary: string;
}

/** 25 %, 50 %, 1 CPU, and so on; powers of two from 1 MiB to 1 TiB. */
const PERCENT_STEPS = [25, 50, 100, 200, 400, 800, 1600, 3200, 6400];
const BYTE_STEPS = Array.from({ length: 21 }, (_, power) => 1_048_576 * 2 ** power);

/** A canvas does not inherit the font of its place. */
function fontOf(element: HTMLElement): string {
  const { fontFamily, fontSize } = getComputedStyle(element);
  return `${fontSize} ${fontFamily}`;
}

const COLORS = ["--chart-1", "--chart-2", "--chart-grid", "--text-muted"] as const;

type DrawnChart = Pick<LineChartProps, "color" | "at" | "values" | "least" | "text" | "steps">;

/** Draws a chart into `place` in the present theme. @param onPoint called with the point of the pointer; null: none */
function useChart({ color, at, values, least, text, steps }: DrawnChart, onPoint: (point: number | null) => void) {
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<Chart | null>(null);
  const [isReady, setReady] = useState(false);
  const [isMissing, setMissing] = useState(false);
  const colors = useColors(COLORS);
  const theme = useTheme();
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    let isLeft = false;
    const observer = new ResizeObserver(() => chart.current?.setSize(element.clientWidth, element.clientHeight));
    const draw = ({ Chart: Made }: typeof import("./chart.ts")) => {
      if (isLeft) return;
      chart.current = new Made({
        place: element,
        width: element.clientWidth,
        height: element.clientHeight,
        text,
        steps,
        least,
        onPoint,
        font: fontOf(element),
        colors: {
          line: colors[color],
          fill: colors[color].replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)"),
          grid: colors["--chart-grid"],
          text: colors["--text-muted"],
        },
      });
      observer.observe(element);
      setReady(true);
    };
    import("./chart.ts").then(draw, () => setMissing(true));
    return () => {
      isLeft = true;
      observer.disconnect();
      chart.current?.destroy();
      chart.current = null;
      setReady(false);
    };
  }, [theme, colors]);
  useEffect(() => {
    if (isReady) chart.current?.setData(at, values);
  }, [isReady, at.length, at.at(-1)]);
  return { place, chart, isMissing };
}

/** A chart with its figures in words. Arrow keys move from point to point, and each is announced. */
function LineChart({ label, color, at, values, least, text, steps, summary }: LineChartProps) {
  const [point, setPoint] = useState<number | null>(null);
  const { place, chart, isMissing } = useChart({ color, at, values, least, text, steps }, setPoint);

  const onKeyDown = (event: KeyboardEvent) => {
    const from = point ?? at.length;
    const steps: Record<string, number> = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: at.length - 1 };
    const step = steps[event.key];
    if (step === undefined || at.length === 0) return;
    event.preventDefault();
    const next = Math.min(at.length - 1, Math.max(0, step));
    setPoint(next);
    chart.current?.point(next);
  };
  const value = point === null ? undefined : values[point];
  const time = point === null ? undefined : at[point];
  return (
    <figure class="run-chart shrink">
      <figcaption class="flex wrap gap-2">
        <span class="strong">{label}</span>{" "}
        <span class="run-chart-summary muted tabular">
          {value === undefined || time === undefined
            ? summary
            : `${text(value)} at ${new Date(time * 1000).toLocaleTimeString("en-GB")}`}
        </span>
      </figcaption>
      <div
        ref={place}
        class="run-chart-place shrink"
        role="img"
        aria-label={`${label} over time: ${summary}`}
        tabIndex={0}
        onKeyDown={onKeyDown}
        onBlur={() => setPoint(null)}
      />
      {isMissing ? <p class="muted">The chart could not be loaded.</p> : null}
      <span class="visually-hidden" role="status">
        {value === undefined || document.activeElement !== place.current ? "" : `${label} ${text(value)}`}
      </span>
    </figure>
  );
}
