import { join } from "node:path";
import { timed } from "../../src/cli/bench/measure.ts";
import { BenchTarget } from "../../src/cli/bench/target.ts";
import { openClient } from "../../src/cli/client.ts";
import { configOf } from "../../src/cli/config/config-options.ts";
import type { Config } from "../../src/config/config.ts";
import type { Appliance, ApplianceOptions } from "../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { type ImageSpec, pushImage } from "../support/images/images.ts";
import type { Registry } from "../support/images/registry.ts";

/** The default of the configuration. */
const POOL_SIZE = 2;
const POOL_MS_MAX = 180_000;
/** A busy machine is measured, too. */
export const FLAGS: readonly string[] = ["--vm-probe-timeout", "60s"];

/** How the unit sets up the memory of the daemon. */
const UNIT = join(import.meta.dir, "../../systemd/coppice.service");
const MEMORY_SETTING = /^Environment=(BUN_JSC_\w+)=(\S+)$/gm;

/** An appliance as it is installed, a registry, and an image to spawn. */
export class BenchHost implements AsyncDisposable {
  readonly appliance: Appliance;
  readonly registry: Registry;
  /** an image of busybox, with one layer */
  readonly base: string;
  readonly quick: boolean;
  readonly #owned: AsyncDisposableStack;
  readonly #through: string[] = [];
  #target: { readonly url: string; readonly target: BenchTarget } | null = null;

  private constructor(parts: {
    appliance: Appliance;
    registry: Registry;
    base: string;
    quick: boolean;
    owned: AsyncDisposableStack;
  }) {
    this.appliance = parts.appliance;
    this.registry = parts.registry;
    this.base = parts.base;
    this.quick = parts.quick;
    this.#owned = parts.owned;
  }

  /** @param more of the appliance, besides what is installed */
  static async start(quick: boolean, more: ApplianceOptions = {}): Promise<BenchHost> {
    await using owned = new AsyncDisposableStack();
    const settings = (await Bun.file(UNIT).text()).matchAll(MEMORY_SETTING);
    const environment = Object.fromEntries([...settings].map(([, name = "", value = ""]) => [name, value]));
    const { appliance, registry, image } = owned.use(
      await BusyboxAppliance.start({ poolSize: POOL_SIZE, flags: FLAGS, environment, ...more }),
    );
    return new BenchHost({ appliance, registry, base: image, quick, owned: owned.move() });
  }

  /** The appliance as `coppice bench` measures it; another one after a restart, which changes its address. */
  get target(): BenchTarget {
    const { url, token } = this.appliance;
    if (this.#target?.url !== url) {
      const target = new BenchTarget({
        client: openClient({ COPPICE_URL: url, COPPICE_TOKEN: token }, undefined),
        image: this.base,
        quick: this.quick,
        rounds: undefined,
        poolMsMax: POOL_MS_MAX,
        signal: new AbortController().signal,
      });
      this.#target = { url, target };
    }
    return this.#target.target;
  }

  /** The appliance's, for parts that read its data directory. */
  get config(): Config {
    return configOf({ config: this.appliance.configFile }, {});
  }

  /** How strongly the appliance isolates its guests here. */
  async isolation(): Promise<string> {
    return (await this.target.run(this.base, "true", { disposable: true })).isolation;
  }

  /** Ends the daemon and starts it again: from the program's start until it listens, in `milliseconds`. */
  async restart(): Promise<number> {
    const { appliance } = this;
    await appliance.down();
    const durationMs = await timed(() => appliance.up());
    // Told by the daemon itself once it listens; that it is true is seen here.
    if ((await fetch(`${appliance.url}/healthz`)).status !== 200) throw new Error("the daemon is not healthy");
    this.#through.length = 0;
    return durationMs;
  }

  /** Restarts the daemon and waits until it is idle, so that later work is not that of the start. */
  async restartFresh(): Promise<void> {
    await this.restart();
    await this.target.poolFull();
  }

  /** Notes a part that the daemon has been through. */
  passed(part: string): void {
    this.#through.push(part);
  }

  /** The load of the daemon since its start, for rows of its memory. */
  get history(): string {
    const parts = this.#through;
    return `${parts.length === 0 ? "a fresh daemon" : `a daemon after ${parts.join(", ")}`}, with the unit's environment`;
  }

  async importImage(name: string, image: ImageSpec): Promise<string> {
    return await this.appliance.importImage(await pushImage(this.registry, `${name}:latest`, image));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#owned.disposeAsync();
  }
}
