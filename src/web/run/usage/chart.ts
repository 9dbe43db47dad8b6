import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

/** Colours of a chart, in a form that a canvas accepts. */
export interface ChartColors {
  readonly line: string;
  readonly fill: string;
  readonly grid: string;
  readonly text: string;
}

export interface ChartOptions {
  readonly place: HTMLElement;
  readonly colors: ChartColors;
  /** fonts of the axes */
  readonly font: string;
  /** in `CSS pixels` */
  readonly width: number;
  readonly height: number;
  /** formats a value of the axis */
  readonly text: (value: number) => string;
  /** possible steps between the labels of the axis */
  readonly steps: readonly number[];
  /** smallest maximum of the axis */
  readonly least: number;
  /** called with the point at the cursor; null: none */
  readonly onPoint: (index: number | null) => void;
}

/** Possible steps between the labels of a time axis, in `seconds`: labels have no fractions of a second. */
const TIME_STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400, 604_800,
] as const;

/** The local time of day. @param seconds since the epoch */
function timeText(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** A line over time on a canvas. */
export class Chart {
  readonly #plot: uPlot;

  constructor({ place, colors, font, width, height, text, steps, least, onPoint }: ChartOptions) {
    const axis = { stroke: colors.text, font, ticks: { show: false } };
    this.#plot = new uPlot(
      {
        width,
        height,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: { y: { range: (_plot, _low, high) => [0, Math.max(least, high * 1.1)] } },
        axes: [
          {
            ...axis,
            grid: { show: false },
            space: 80,
            incrs: [...TIME_STEPS],
            values: (_plot, times) => times.map(timeText),
          },
          {
            ...axis,
            size: 72,
            space: 36,
            incrs: [...steps],
            grid: { stroke: colors.grid, width: 1 },
            values: (_plot, values) => values.map(text),
          },
        ],
        series: [{}, { stroke: colors.line, fill: colors.fill, width: 1.5, points: { show: false } }],
        hooks: { setCursor: [(plot) => onPoint(plot.cursor.idx ?? null)] },
      },
      [[], []],
      place,
    );
  }

  setData(at: readonly number[], values: readonly number[]): void {
    this.#plot.setData([at as number[], values as number[]]);
  }

  setSize(width: number, height: number): void {
    this.#plot.setSize({ width, height });
  }

  /** Moves the cursor to a point. */
  point(index: number): void {
    const at = this.#plot.data[0][index];
    if (at !== undefined) this.#plot.setCursor({ left: this.#plot.valToPos(at, "x"), top: 0 });
  }

  destroy(): void {
    this.#plot.destroy();
  }
}
