/** Largest number of series of a metric; further label values are counted as `other`, so that clients cannot add more. */
const SERIES_COUNT_MAX = 1000;
const OTHER = "other";

/** Bounds of histogram buckets in `seconds`, from a warm clone's millisecond to a long import's half an hour. */
const BUCKETS_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800];

type Labels<Name extends string> = Readonly<Record<Name, string>>;
/** A value of a gauge. */
export type Sample<Name extends string> = readonly [labels: Labels<Name>, value: number];

interface Family {
  readonly name: string;
  render(): string;
}

/** The series of one metric, by their label values. */
class Series<Name extends string, State> {
  readonly #names: readonly Name[];
  readonly #make: () => State;
  readonly #states = new Map<string, { readonly labels: Labels<Name>; readonly state: State }>();

  constructor(names: readonly Name[], make: () => State) {
    this.#names = names;
    this.#make = make;
  }

  of(labels: Labels<Name>): State {
    let key = "";
    // Every request runs this: it builds one string, and no array.
    for (const name of this.#names) key += `${labels[name]}\0`;
    const series = this.#states.get(key);
    if (series !== undefined) return series.state;
    const isOther = this.#names.every((name) => labels[name] === OTHER);
    if (this.#states.size >= SERIES_COUNT_MAX && this.#names.length > 0 && !isOther) {
      return this.of(Object.fromEntries(this.#names.map((name) => [name, OTHER])) as Labels<Name>);
    }
    const state = this.#make();
    this.#states.set(key, { labels, state });
    return state;
  }

  entries(): Iterable<{ readonly labels: Labels<Name>; readonly state: State }> {
    return this.#states.values();
  }
}

export interface Counter<Name extends string> {
  add(labels: Labels<Name>, by?: number): void;
}

export interface Histogram<Name extends string> {
  /** Records one duration, in `seconds`. */
  observe(labels: Labels<Name>, seconds: number): void;
}

/** A set of metrics, and their text in the format of Prometheus. */
export class MetricRegistry {
  readonly #families: Family[] = [];
  readonly #preparations: (() => Promise<void>)[] = [];

  counter<const Name extends string>(name: string, help: string, labelNames: readonly Name[]): Counter<Name> {
    const series = new Series(labelNames, () => ({ value: 0 }));
    this.#add(name, help, "counter", () =>
      [...series.entries()].map(({ labels, state }) => line(name, labels, state.value)),
    );
    return {
      add: (labels, by = 1) => {
        series.of(labels).value += by;
      },
    };
  }

  /** `read` is called for every scrape, so it must be cheap. The kind `counter` is for totals that are counted elsewhere. */
  gauge<const Name extends string>(
    name: string,
    help: string,
    read: () => Iterable<Sample<Name>>,
    kind: "gauge" | "counter" = "gauge",
  ): void {
    this.#add(name, help, kind, () => Array.from(read(), ([labels, value]) => line(name, labels, value)));
  }

  histogram<const Name extends string>(name: string, help: string, labelNames: readonly Name[]): Histogram<Name> {
    const make = () => ({ counts: new Array<number>(BUCKETS_SECONDS.length).fill(0), sum: 0, count: 0 });
    const series = new Series(labelNames, make);
    this.#add(name, help, "histogram", () => {
      return [...series.entries()].flatMap(({ labels, state }) => {
        let below = 0;
        const buckets = BUCKETS_SECONDS.map((limit, index) => {
          below += state.counts[index] ?? 0;
          return line(`${name}_bucket`, { ...labels, le: String(limit) }, below);
        });
        return [
          ...buckets,
          line(`${name}_bucket`, { ...labels, le: "+Inf" }, state.count),
          line(`${name}_sum`, labels, state.sum),
          line(`${name}_count`, labels, state.count),
        ];
      });
    });
    return {
      observe: (labels, seconds) => {
        const state = series.of(labels);
        const bucket = BUCKETS_SECONDS.findIndex((limit) => seconds <= limit);
        if (bucket >= 0) state.counts[bucket] = (state.counts[bucket] ?? 0) + 1;
        state.sum += seconds;
        state.count += 1;
      },
    };
  }

  /** Calls `prepare` before each scrape, to read values for gauges. */
  before(prepare: () => Promise<void>): void {
    this.#preparations.push(prepare);
  }

  /** The text exposition format, version 0.0.4. */
  async render(): Promise<string> {
    await Promise.all(this.#preparations.map((prepare) => prepare()));
    return this.#families.map((family) => family.render()).join("");
  }

  #add(name: string, help: string, type: string, lines: () => string[]): void {
    if (this.#families.some((family) => family.name === name)) throw new Error(`there are two metrics named ${name}`);
    const head = `# HELP ${name} ${help.replaceAll("\\", "\\\\").replaceAll("\n", "\\n")}\n# TYPE ${name} ${type}\n`;
    this.#families.push({ name, render: () => `${head}${lines().join("")}` });
  }
}

function line(name: string, labels: Readonly<Record<string, string>>, value: number): string {
  const pairs = Object.entries(labels).map(([label, text]) => `${label}="${escapeLabel(text)}"`);
  return `${name}${pairs.length === 0 ? "" : `{${pairs.join(",")}}`} ${textOf(value)}\n`;
}

function escapeLabel(text: string): string {
  return text.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");
}

function textOf(value: number): string {
  if (Number.isFinite(value)) return String(value);
  return Number.isNaN(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
}
