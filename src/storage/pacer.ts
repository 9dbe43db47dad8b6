import { ownTurn, sharedTurnSince } from "../system/turns.ts";

/** How long a long computation may hold the event loop, in `milliseconds`. */
const SLICE_MS_MAX = 1;

/** Says whether a computation is still wanted; an `AbortSignal` is one. */
export interface Wanted {
  /** shares the turns of one with all computations of the same owner; without it, a computation has its own */
  readonly owner?: unknown;
  /** @throws what ends the computation */
  throwIfAborted(): void;
}

/**
 * Lets a long computation give way to everything else, and ends it when nobody wants it any more:
 * `if (pacer.due()) await pacer.yield()`. Of all such computations one goes on in each turn of the event loop, and of
 * those that have begun in one turn, all together take no longer in it than one.
 */
export class Pacer {
  readonly #wanted: Wanted | null;
  #since = sharedTurnSince();

  constructor(wanted: Wanted | null = null) {
    this.#wanted = wanted;
  }

  due(): boolean {
    return performance.now() - this.#since > SLICE_MS_MAX;
  }

  /** @throws what `wanted` throws */
  async yield(): Promise<void> {
    this.#wanted?.throwIfAborted();
    await ownTurn(this.#wanted?.owner ?? this);
    this.#wanted?.throwIfAborted();
    this.#since = performance.now();
  }
}

/** Entries that are compared, merged or counted between two looks at the clock. */
export const STEP_COUNT = 256;

/** Sorts in place, stable, and gives way to the event loop on the way. */
export async function sortPaced(
  values: Uint32Array<ArrayBuffer>,
  compare: (a: number, b: number) => number,
  pacer: Pacer,
): Promise<void> {
  for (let start = 0; start < values.length; start += STEP_COUNT) {
    values.subarray(start, start + STEP_COUNT).sort(compare);
    if (pacer.due()) await pacer.yield();
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
    if (at % STEP_COUNT === 0 && pacer.due()) await pacer.yield();
  }
}
