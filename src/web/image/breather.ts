import { nextTurn } from "../data/next-turn.ts";

/** Longest piece of work without a break, in `milliseconds`. */
const TURN_MS = 8;

/** Breaks work when it has lasted for a while. @throws the reason of the signal, when nobody waits for the work any more */
export type Breather = () => Promise<void>;

/** @param pause ends when the work may go on */
export function breather(signal: AbortSignal, pause: () => Promise<void> = nextTurn): Breather {
  let until = performance.now() + TURN_MS;
  return async () => {
    if (performance.now() < until) return;
    await pause();
    signal.throwIfAborted();
    until = performance.now() + TURN_MS;
  };
}
