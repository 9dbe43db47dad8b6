import { existsSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { timed } from "../../src/cli/bench/figures.ts";
import type { Acceleration } from "../../src/vm/vmm.ts";
import type { Appliance } from "../support/appliance.ts";
import { BusyboxAppliance } from "../support/busybox-appliance.ts";
import { type ImageSpec, pushImage } from "../support/images.ts";
import type { Registry } from "../support/registry.ts";
import { type RunResult, resultOf } from "../support/runs.ts";
import { until } from "../support/waiting.ts";

const ASSETS = resolve(import.meta.dir, "../../build/assets");
/** As the configuration has it where nobody says otherwise. */
const POOL_SIZE = 2;
const POOL_MS_MAX = 180_000;
/** A machine that is too busy for its trial is measured all the same. */
const FLAGS = ["--vm-probe-timeout", "60s"];
/** The parts have deadlines of their own; a slow machine shall have its figures, too. */
const OPERATION_MS_MAX = 600_000;

/** An appliance as it is installed, a registry, and an image to spawn. */
export class BenchHost implements AsyncDisposable {
  readonly appliance: Appliance;
  readonly registry: Registry;
  /** an image of busybox, with one layer */
  readonly base: string;
  readonly quick: boolean;
  readonly #owned: AsyncDisposableStack;

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

  static async start(quick: boolean): Promise<BenchHost> {
    await using owned = new AsyncDisposableStack();
    const { appliance, registry, image } = owned.use(
      await BusyboxAppliance.start({ poolSize: POOL_SIZE, flags: FLAGS }),
    );
    return new BenchHost({ appliance, registry, base: image, quick, owned: owned.move() });
  }

  async importImage(name: string, image: ImageSpec): Promise<string> {
    return await this.appliance.importImage(await pushImage(this.registry, `${name}:latest`, image));
  }

  /** How many measurements make a figure. */
  rounds(full: number, quick: number): number {
    return this.quick ? quick : full;
  }

  /** Time from the request to the answer that says SUCCESS, once clones wait, in `milliseconds`. */
  async spawn(image: string, command: string, more: Record<string, unknown> = {}): Promise<number> {
    await this.warm();
    return await timed(() => this.run(image, command, more));
  }

  async run(image: string, command: string, more: Record<string, unknown> = {}): Promise<RunResult> {
    const id = await this.appliance.spawn({ image, command, shell: true, ...more });
    const result = resultOf(await this.appliance.finished(id, OPERATION_MS_MAX));
    if (result.exit_code !== 0) throw new Error(`${command} ended with ${result.exit_code}: ${result.err}`);
    return result;
  }

  /** Waits until as many clones wait as the pool has, all of them as ready as they get, and nothing else runs. */
  async warm(): Promise<void> {
    const isFull = async () => (await this.metrics()).text.includes(`coppice_pool_ready ${POOL_SIZE}\n`);
    await until("the pool is full", isFull, POOL_MS_MAX);
  }

  /** What Prometheus would see, with the samples by their name and labels. */
  async metrics(): Promise<{ readonly text: string; value(sample: string): number }> {
    const text = await (await fetch(`${this.appliance.url}/metrics`)).text();
    const lines = text.split("\n");
    const value = (sample: string): number =>
      Number(lines.find((line) => line.startsWith(`${sample} `))?.slice(sample.length) ?? 0);
    return { text, value };
  }

  /** Disks of the layers of an image that was imported: there is one only. */
  newestLayerDisk(): string {
    const directory = join(this.appliance.dataDir, "layers");
    const names = readdirSync(directory).filter((name) => name.endsWith(".disk"));
    // Ids are version 7, so that the newest is the last.
    return join(directory, names.sort().at(-1) ?? "");
  }

  scratchTemplate(): string {
    const directory = join(this.appliance.dataDir, "scratch");
    return join(directory, readdirSync(directory).find((name) => name.endsWith(".ext4")) ?? "");
  }

  async acceleration(): Promise<Acceleration> {
    const { isolation } = await this.run(this.base, "true", { disposable: true });
    return isolation === "vm" ? "kvm" : "tcg";
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#owned.disposeAsync();
  }
}

/** A file of `make assets`. */
export function asset(name: string): string {
  const path = join(ASSETS, name);
  if (!existsSync(path)) throw new Error(`${path} is missing: run make assets first`);
  return path;
}
