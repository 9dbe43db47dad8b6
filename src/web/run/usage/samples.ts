import type { Usage } from "../../../client/types.ts";

/** Largest number of points of a chart. */
export const POINTS_MAX = 600;

/** Points of a chart, in the form of uPlot. */
export interface Points {
  /** in `seconds` since the epoch */
  readonly at: readonly number[];
  /** share of one CPU, in `percent` */
  readonly cpu: readonly number[];
  /** in `bytes` */
  readonly memory: readonly number[];
}

/**
 * A sample with the usage since the previous one, which single samples do not report. If the machine was replaced in between,
 * its counters began at zero.
 */
export function sinceLast(before: Usage | null, sample: Usage): Usage {
  if (before === null) return sample;
  const elapsedMs = Date.parse(sample.at) - Date.parse(before.at);
  const usedMs = sample.cpu_time_ms - before.cpu_time_ms;
  return elapsedMs > 0 && usedMs >= 0 ? { ...sample, cpu_percent: (100 * usedMs) / elapsedMs } : sample;
}

/**
 * Samples of a run of any length, in a bounded number of points. When there are too many, each two neighbours are merged, and
 * the number of samples per point doubles. A point has the mean of the CPU and the maximum of the memory.
 */
export class Samples {
  #at: number[] = [];
  #cpu: number[] = [];
  #memory: number[] = [];
  #perPoint = 1;
  #pending: { readonly count: number; readonly cpu: number; readonly memory: number } = { count: 0, cpu: 0, memory: 0 };
  #latest: Usage | null = null;
  #cpuPeak = 0;

  add(sample: Usage): void {
    this.#latest = sample;
    this.#cpuPeak = Math.max(this.#cpuPeak, sample.cpu_percent);
    const { count, cpu, memory } = this.#pending;
    const next = {
      count: count + 1,
      cpu: cpu + sample.cpu_percent,
      memory: Math.max(memory, sample.memory_bytes),
    };
    if (next.count < this.#perPoint) {
      this.#pending = next;
      return;
    }
    this.#pending = { count: 0, cpu: 0, memory: 0 };
    this.#at.push(Date.parse(sample.at) / 1000);
    this.#cpu.push(next.cpu / next.count);
    this.#memory.push(next.memory);
    if (this.#at.length > POINTS_MAX) this.#halve();
  }

  get points(): Points {
    return { at: [...this.#at], cpu: [...this.#cpu], memory: [...this.#memory] };
  }

  /** null: there is no sample yet */
  get latest(): Usage | null {
    return this.#latest;
  }

  /** highest share of one CPU in a sample, in `percent` */
  get cpuPeak(): number {
    return this.#cpuPeak;
  }

  #halve(): void {
    const pairs = Math.floor(this.#at.length / 2);
    const pick = <T>(make: (one: number, other: number) => T): T[] =>
      Array.from({ length: pairs }, (_, index) => make(2 * index, 2 * index + 1));
    const value = (values: readonly number[], index: number) => values[index] ?? 0;
    const at = pick((_, other) => value(this.#at, other));
    const cpu = pick((one, other) => (value(this.#cpu, one) + value(this.#cpu, other)) / 2);
    const memory = pick((one, other) => Math.max(value(this.#memory, one), value(this.#memory, other)));
    // With an odd number, the last one waits for its partner.
    this.#at = at;
    this.#cpu = cpu;
    this.#memory = memory;
    this.#perPoint *= 2;
  }
}
