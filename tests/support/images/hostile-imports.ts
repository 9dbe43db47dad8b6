import { expect } from "bun:test";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { cgroupNamespace } from "../../../src/supervisor/machines/cgroups.ts";
import { Appliance, processesWith } from "../appliance/appliance.ts";
import { controlGroups } from "../appliance/control-groups.ts";
import { type Body, upload } from "../runs.ts";
import { until } from "../waiting.ts";
import { type RawImage, RawRegistry } from "./hostile-images.ts";

const IMPORT_SECONDS = 180;

export interface Ended {
  readonly status: string;
  readonly error?: { readonly error: string; readonly message: string; readonly details: Body };
  readonly result?: { readonly image: string };
}

/** By name: the attempt, and the pattern of its error. */
export type Cases<T> = Readonly<Record<string, readonly [what: T, failure: RegExp]>>;

/** An appliance, files that an import could damage, and a registry with arbitrary content. */
export class HostileImports implements AsyncDisposable {
  readonly appliance: Appliance;
  readonly registry: RawRegistry;
  /** records requests that an image directs to another host */
  readonly elsewhere: RawRegistry;
  /** a directory next to the data directory that must not change */
  readonly canary: string;
  readonly #owned: AsyncDisposableStack;
  #before: readonly string[] = [];
  #count = 0;

  private constructor(
    parts: Pick<HostileImports, "appliance" | "registry" | "elsewhere" | "canary">,
    owned: AsyncDisposableStack,
  ) {
    this.appliance = parts.appliance;
    this.registry = parts.registry;
    this.elsewhere = parts.elsewhere;
    this.canary = parts.canary;
    this.#owned = owned;
  }

  static async start(flags: readonly string[]): Promise<HostileImports> {
    await using stack = new AsyncDisposableStack();
    const registry = stack.use(new RawRegistry());
    const elsewhere = stack.use(new RawRegistry());
    const canary = await mkdtemp(join(tmpdir(), "coppice-canary-"));
    stack.defer(() => rm(canary, { recursive: true }));
    await writeFile(join(canary, "file"), "safe");
    await mkdir(join(canary, "directory"));
    const appliance = stack.use(await Appliance.start({ registries: [registry.host], poolSize: 1, flags }));
    const imports = new HostileImports({ appliance, registry, elsewhere, canary }, stack.move());
    imports.#before = await imports.#outside();
    return imports;
  }

  /** Waits until the files of an import are removed; fails when anything else has changed. */
  async expectNothingTouched(): Promise<void> {
    await until("no import directory is left", async () => {
      return (await this.appliance.leftovers()).every((name) => name.startsWith("vms/"));
    });
    // A program that removes a directory ends after it.
    await until("the tools have ended", async () => (await this.#tools()).length === 0);
    expect(await this.#outside()).toEqual([...this.#before]);
    expect(this.elsewhere.requests).toEqual([]);
  }

  async importing(image: RawImage): Promise<Ended> {
    this.#count += 1;
    return await this.importingFrom(this.registry.add(`hostile-${this.#count}`, image));
  }

  /** @param token of the account that imports; default is the appliance's first */
  async importingFrom(reference: string, seconds = IMPORT_SECONDS, token = this.appliance.token): Promise<Ended> {
    return await this.#ended("/images/import", { registry: reference, timeout: seconds }, token);
  }

  /** @param token as in `importingFrom` */
  async loading(
    archive: Uint8Array<ArrayBuffer>,
    seconds = IMPORT_SECONDS,
    token = this.appliance.token,
  ): Promise<Ended> {
    const file = await upload(this.appliance, archive, token);
    return await this.#ended("/images/load", { file, timeout: seconds }, token);
  }

  /** The image of an import that must succeed. */
  async imported(image: RawImage): Promise<string> {
    const operation = await this.importing(image);
    if (operation.status !== "SUCCESS") throw new Error(JSON.stringify(operation));
    return operation.result?.image ?? "";
  }

  /** Expects every case to end FAILED with its error, which must not name directories of the host. */
  async expectAllFail<T>(cases: Cases<T>, attempt: (what: T) => Promise<Ended>): Promise<void> {
    const outcomes = await Promise.all(
      Object.entries(cases).map(async ([name, [what, failure]]) => {
        const { status, error } = await attempt(what);
        const text = `${status} ${error?.error}: ${error?.message} ${JSON.stringify(error?.details)}`;
        const isAsExpected = status === "FAILED" && failure.test(text) && !text.includes(this.appliance.dataDir);
        return isAsExpected ? [] : [`${name}: ${text}`];
      }),
    );
    expect(outcomes.flat()).toEqual([]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }

  async #ended(path: string, request: Body, token: string): Promise<Ended> {
    const response = await this.appliance.post(path, request, token);
    const body = (await response.json()) as { uuid: string };
    if (response.status !== 202) throw new Error(`answered ${response.status}: ${JSON.stringify(body)}`);
    return (await this.appliance.finished(body.uuid, (IMPORT_SECONDS + 20) * 1000, token)) as unknown as Ended;
  }

  /** Programs that work for imports. */
  #tools(): ReturnType<typeof processesWith> {
    return processesWith(join(this.appliance.dataDir, "tmp/import-"));
  }

  /** Everything that an import could change outside of its own directory: files, mounts, processes, control groups. */
  async #outside(): Promise<string[]> {
    const { dataDir } = this.appliance;
    const { mtimeMs, ino } = await stat(join(this.canary, "file"));
    const namespace = `/${cgroupNamespace(dataDir)}/import-`;
    const tools = await this.#tools();
    return [
      `${await readFile(join(this.canary, "file"), "utf8")} ${mtimeMs} ${ino}`,
      ...(await readdir(this.canary)),
      // The database and the verdicts of the probe are files.
      ...(await readdir(dataDir, { withFileTypes: true })).flatMap((entry) => (entry.isFile() ? [] : [entry.name])),
      ...(await readdir(dirname(dataDir))),
      ...(await readdir("/")),
      ...(await readFile("/proc/self/mountinfo", "utf8")).split("\n").filter((line) => line.includes(dataDir)),
      ...(await controlGroups((path) => path.includes(namespace))),
      ...tools.map(({ argv }) => argv),
    ].filter((line) => line !== "");
  }
}
