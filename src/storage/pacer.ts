import { ownTurn, sharedTurnSince } from "../system/turns.ts";

/** Longest time for which a computation may block the event loop, in `milliseconds`. */
const SLICE_MS_MAX = 1;

/** Ends a computation whose result is no longer needed. An `AbortSignal` is one. */
export interface Cancellation {
  /** computations of one owner take turns as if they were one; default: a separate owner */
  readonly owner?: unknown;
  /** @throws Error when the computation must end */
  throwIfAborted(): void;
}

/**
 * Lets a long computation yield to the event loop, and ends it when it is cancelled:
 * `if (pacer.shouldYield()) await pacer.yield()`. In each turn of the event loop only one such computation continues, and
 * all that begin in one turn share one time slice.
 */
export class Pacer {
  readonly #cancellation: Cancellation | null;
  #since = sharedTurnSince();

  constructor(cancellation: Cancellation | null = null) {
    this.#cancellation = cancellation;
  }

  shouldYield(): boolean {
    return performance.now() - this.#since > SLICE_MS_MAX;
  }

  /** @throws the error of the cancellation */
  async yield(): Promise<void> {
    this.#cancellation?.throwIfAborted();
    await ownTurn(this.#cancellation?.owner ?? this);
    this.#cancellation?.throwIfAborted();
    this.#since = performance.now();
  }
}

/** Number of comparisons or steps after which the clock is checked. */
export const STEP_COUNT = 256;

/** Sorts in place. The sort is stable, and yields to the event loop. */
export async function sortPaced(
  values: Uint32Array<ArrayBuffer>,
  compare: (a: number, b: number) => number,
  pacer: Pacer,
): Promise<void> {
  for (let start = 0; start < values.length; start += STEP_COUNT) {
    values.subarray(start, start + STEP_COUNT).sort(compare);
    if (pacer.shouldYield()) await pacer.yield();
  }
  let source = values;
  let target = new Uint32Array(values.length);
  for (let width = STEP_COUNT; width < values.length; width *= 2) {
    for (let start = 0; start < values.length; start += 2 * width) {
      await mergeRuns(source, target, [start, start + width, start + 2 * width], compare, pacer);
    }
    [source, target] = [target, source];
  }
  if (source !== values) values.set(source);
}

async function mergeRuns(
  source: Uint32Array,
  target: Uint32Array,
  bounds: readonly [number, number, number],
  compare: (a: number, b: number) => number,
  pacer: Pacer,
): Promise<void> {
  const middle = Math.min(bounds[1], source.length);
  const end = Math.min(bounds[2], source.length);
  let left = bounds[0];
  let right = middle;
  for (let at = bounds[0]; at < end; at++) {
    const takeLeft = left < middle && (right >= end || compare(source[left] as number, source[right] as number) <= 0);
    target[at] = source[takeLeft ? left++ : right++] as number;
    if (at % STEP_COUNT === 0 && pacer.shouldYield()) await pacer.yield();
  }
}
