import { afterAll, beforeAll } from "bun:test";
import { type Body, execute, type RunResult } from "../runs.ts";
import type { Appliance } from "./appliance.ts";
import { BusyboxAppliance, type BusyboxApplianceOptions } from "./busybox-appliance.ts";

/** Commands in busybox, for the tests of a file: the appliance starts before the first one, and ends after the last one. */
export class BusyboxCommands {
  #box: BusyboxAppliance | null = null;

  constructor(options: BusyboxApplianceOptions = {}) {
    const owned = new AsyncDisposableStack();
    beforeAll(async () => {
      this.#box = owned.use(await BusyboxAppliance.start({ poolSize: 2, tag: "busybox", ...options }));
    });
    afterAll(async () => await owned.disposeAsync());
  }

  get appliance(): Appliance {
    return this.#started.appliance;
  }

  get image(): string {
    return this.#started.image;
  }

  /** Runs a request to its end; disposable and on busybox unless it says otherwise. */
  readonly exec = (request: Body): Promise<RunResult> => execute(this.appliance, { image: this.image, ...request });

  /** As `exec`, with the command in a shell. */
  readonly shell = (command: string, more: Body = {}): Promise<RunResult> =>
    this.exec({ command, shell: true, ...more });

  get #started(): BusyboxAppliance {
    if (this.#box === null) throw new Error("the appliance starts before the first test");
    return this.#box;
  }
}
