import { startTimer } from "../../system/waiting.ts";

/** Beyond this number of records, output is gathered by stream and written every `GATHER_MS` only: headers of single bytes
 * would make the file many times as large as the output. Each stream keeps its order. */
const GATHER_FROM_COUNT = 65_536;
const GATHER_MS = 10;
/** Beyond this number of records, output is written every `10 * GATHER_MS` only, and in a full log even less often. */
const GATHER_LONGER_FROM_COUNT = 1_048_576;

/** True when output is gathered in a log with so many records. */
export function isGathered(recordsCount: number): boolean {
  return recordsCount > GATHER_FROM_COUNT;
}

/** The wait for more output, before gathered output is written. */
export class GatherWait {
  /** true when the wait must end */
  #isHurried = false;
  #end: () => void = () => undefined;

  /** Waits for a time, or until `hurry`. */
  async more(recordsCount: number, isFull: boolean): Promise<void> {
    const steps = isFull ? 100 : recordsCount > GATHER_LONGER_FROM_COUNT ? 10 : 1;
    using timer = startTimer(steps * GATHER_MS);
    const hurried = Promise.withResolvers<void>();
    this.#end = hurried.resolve;
    if (!this.#isHurried) await Promise.race([timer.fired, hurried.promise]);
    this.#isHurried = false;
  }

  /** Ends the present wait, or else the next one. */
  hurry(): void {
    this.#isHurried = true;
    this.#end();
  }
}
