import { join } from "node:path";
import * as local from "../../src/cli/bench/host.ts";
import { BenchTarget } from "../../src/cli/bench/target.ts";
import { openClient } from "../../src/cli/client.ts";
import { configOf } from "../../src/cli/config-options.ts";
import type { Appliance, ApplianceOptions } from "../support/appliance.ts";
import { BusyboxAppliance } from "../support/busybox-appliance.ts";
import { type ImageSpec, pushImage } from "../support/images.ts";
import type { Registry } from "../support/registry.ts";

/** The default of the configuration. */
const POOL_SIZE = 2;
const POOL_MS_MAX = 180_000;
/** A busy machine is measured, too. */
const FLAGS = ["--vm-probe-timeout", "60s"];

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
    const { url, token, configFile } = this.appliance;
    if (this.#target?.url !== url) {
      const target = new BenchTarget({
        client: openClient({ COPPICE_URL: url, COPPICE_TOKEN: token }, undefined),
        image: this.base,
        quick: this.quick,
        rounds: undefined,
        config: configOf({ config: configFile }, {}),
        local,
        poolMsMax: POOL_MS_MAX,
        signal: new AbortController().signal,
      });
      this.#target = { url, target };
    }
    return this.#target.target;
  }

  async importImage(name: string, image: ImageSpec): Promise<string> {
    return await this.appliance.importImage(await pushImage(this.registry, `${name}:latest`, image));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#owned.disposeAsync();
  }
}
