import type { OperationId, SandboxId } from "../../domain/ids.ts";
import { SANDBOX_SAMPLE_MS, SANDBOX_SAMPLES_COUNT_MAX, type SandboxSample } from "../../domain/sandbox.ts";
import type { Log } from "../../log.ts";
import type { RunningInstances } from "../instance/running-instances.ts";
import type { SandboxJournal } from "./journal.ts";

export interface SamplesOptions {
  readonly journal: SandboxJournal;
  readonly instances: Pick<RunningInstances, "usage">;
  readonly clock: () => number;
  readonly log: Log;
  /** time between two samples of a sandbox, in `milliseconds` */
  readonly intervalMs?: number | undefined;
}

/** Samples the usage of running sandboxes, and keeps the latest samples of each until its life ends. */
export class Samples implements Disposable {
  readonly #options: SamplesOptions;
  /** of the running sandboxes */
  readonly #series = new Map<SandboxId, Series>();
  readonly #listening: Disposable;
  #timer: Timer | null = null;
  #isDisposed = false;

  constructor(options: SamplesOptions) {
    this.#options = options;
    this.#listening = options.journal.listen(({ row: { id, state, operationId } }) => {
      if (state === "running" && operationId !== null) this.#begin(id, operationId);
      else this.#series.delete(id);
    });
  }

  /** The samples of the present life, in the order of time; none of a sandbox that does not run. */
  of(id: SandboxId): readonly SandboxSample[] {
    return this.#series.get(id)?.samples() ?? [];
  }

  [Symbol.dispose](): void {
    this.#isDisposed = true;
    this.#listening[Symbol.dispose]();
    this.#series.clear();
    clearTimeout(this.#timer ?? undefined);
  }

  #begin(id: SandboxId, operationId: OperationId): void {
    const series = new Series(operationId);
    this.#series.set(id, series);
    void this.#sample(series);
    this.#timer ??= this.#later();
  }

  #later(): Timer {
    return setTimeout(() => void this.#sampleAll(), this.#options.intervalMs ?? SANDBOX_SAMPLE_MS);
  }

  /** One after another: a host with many sandboxes has other work, too. */
  async #sampleAll(): Promise<void> {
    for (const series of [...this.#series.values()]) await this.#sample(series);
    this.#timer = this.#series.size === 0 || this.#isDisposed ? null : this.#later();
  }

  /** Never throws: a machine may end meanwhile. */
  async #sample(series: Series): Promise<void> {
    const { instances, clock, log } = this.#options;
    try {
      const usage = await instances.usage(series.operationId);
      if (usage !== null) series.add(clock(), usage);
    } catch (error) {
      log.warn("cannot read the usage of a sandbox", { operation: series.operationId, error });
    }
  }
}

type Usage = NonNullable<Awaited<ReturnType<RunningInstances["usage"]>>>;

/** Numbers of a sample in the memory of a series. */
const FIELDS_COUNT = 5;
const SAMPLES_COUNT_MIN = 16;

/** The latest samples of one life, at most `SANDBOX_SAMPLES_COUNT_MAX`. Its memory grows with them, up to 29 kB. */
class Series {
  readonly operationId: OperationId;
  #values = new Float64Array(FIELDS_COUNT * SAMPLES_COUNT_MIN);
  /** number of all samples until now */
  #count = 0;
  #latest: { readonly at: number; readonly cpuTimeMs: number } | null = null;

  constructor(operationId: OperationId) {
    this.operationId = operationId;
  }

  add(at: number, { cpuTimeMs, memoryBytes, cacheBytes, diskBytes }: Usage): void {
    const { at: beforeAt, cpuTimeMs: beforeMs } = this.#latest ?? { at, cpuTimeMs };
    this.#latest = { at, cpuTimeMs };
    const cpuPercent = at > beforeAt ? Math.max(0, (100 * (cpuTimeMs - beforeMs)) / (at - beforeAt)) : 0;
    this.#makeRoom();
    this.#values.set(
      [at, cpuPercent, memoryBytes, cacheBytes, diskBytes],
      FIELDS_COUNT * (this.#count % this.#capacity),
    );
    this.#count += 1;
  }

  samples(): SandboxSample[] {
    const length = Math.min(this.#count, this.#capacity);
    return Array.from({ length }, (_, index) => {
      const place = FIELDS_COUNT * ((this.#count - length + index) % this.#capacity);
      const [at = 0, cpuPercent = 0, memoryBytes = 0, cacheBytes = 0, diskBytes = 0] = this.#values.subarray(place);
      return { at, cpuPercent, memoryBytes, cacheBytes, diskBytes };
    });
  }

  get #capacity(): number {
    return this.#values.length / FIELDS_COUNT;
  }

  #makeRoom(): void {
    if (this.#count < this.#capacity || this.#capacity === SANDBOX_SAMPLES_COUNT_MAX) return;
    const grown = new Float64Array(FIELDS_COUNT * Math.min(2 * this.#capacity, SANDBOX_SAMPLES_COUNT_MAX));
    grown.set(this.#values);
    this.#values = grown;
  }
}
