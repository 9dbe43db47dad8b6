/** The faults that had begun at a moment. */
export interface Moment {
  readonly outages: number;
  readonly isOut: boolean;
  readonly cuts: number;
  readonly kills: number;
}

/** The faults so far, which excuse what they disturb, and nothing else. */
export class Disturbances {
  /** instances whose monitors were killed */
  readonly #killed = new Set<string>();
  #outages = 0;
  #isOut = false;
  #cuts = 0;
  #kills = 0;

  /** The faults until now, to compare with later ones. */
  get now(): Moment {
    return {
      outages: this.#outages,
      isOut: this.#isOut,
      cuts: this.#cuts,
      kills: this.#kills,
    };
  }

  /** The daemon is about to end. */
  outage(): void {
    this.#outages += 1;
    this.#isOut = true;
  }

  /** The daemon answers again. */
  over(): void {
    this.#isOut = false;
  }

  /** The process that connects to the outside is about to end. */
  cut(): void {
    this.#cuts += 1;
  }

  /** A monitor is about to be killed. @param instance null: its machine has no record, because it runs no instance yet */
  kill(instance: string | null): void {
    this.#kills += 1;
    if (instance !== null) this.#killed.add(instance);
  }

  /** True when the daemon was not there all the time since the moment. */
  wasOut(since: Moment): boolean {
    return since.isOut || since.outages !== this.#outages;
  }

  /** True when connections to the outside may have ended. */
  wasCut(since: Moment): boolean {
    return this.wasOut(since) || since.cuts !== this.#cuts;
  }

  /** True when any monitor was killed since the moment. */
  wasKill(since: Moment): boolean {
    return since.kills !== this.#kills;
  }

  /** True when the monitor of the instance was killed. */
  isKilled(instance: string): boolean {
    return this.#killed.has(instance);
  }
}
