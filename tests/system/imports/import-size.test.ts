import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { Appliance } from "../../support/appliance/appliance.ts";
import { SmallDisk } from "../../support/appliance/small-disk.ts";
import { busyboxImage, type ImageSpec, pushImage } from "../../support/images/images.ts";
import { Registry } from "../../support/images/registry.ts";
import type { TarEntry } from "../../support/images/tar.ts";
import { download, execute, list, names } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(180_000);

const MIB = 1_048_576;

const owned = new AsyncDisposableStack();
let registry: Registry;
let appliance: Appliance;
let busybox: ImageSpec;

beforeAll(async () => {
  registry = owned.use(await Registry.start());
  appliance = owned.use(await Appliance.start({ registries: [registry.host], poolSize: 1 }));
  busybox = await busyboxImage();
});

afterAll(async () => {
  await owned.disposeAsync();
});

/** Imports the busybox image with one more layer; returns its duration, too. */
async function imported(name: string, entries: readonly TarEntry[]): Promise<{ image: string; seconds: number }> {
  const reference = await pushImage(registry, `${name}:1`, { ...busybox, layers: [...busybox.layers, entries] });
  const startedAt = performance.now();
  const operation = await appliance.finished(await appliance.submitImport(reference, { timeout: 150 }), 170_000);
  if (operation.status !== "SUCCESS") throw new Error(JSON.stringify(operation));
  const seconds = (performance.now() - startedAt) / 1000;
  process.stdout.write(`import of ${name}: ${seconds.toFixed(1)} s\n`);
  return { image: (operation.result as unknown as { image: string }).image, seconds };
}

const empty = (path: string): TarEntry => ({ path, content: "" });
const range = (count: number) => Array.from({ length: count }, (_, index) => index);

describe("an imported image may have", () => {
  test("names of 255 bytes, which only ext4 supports, together with names of 254", async () => {
    const long = "l".repeat(255);
    const wide = "ü".repeat(127);
    const { image } = await imported("long-names", [
      { path: long, content: "255" },
      { path: `${"d".repeat(255)}/`, type: "directory" },
      { path: `${"d".repeat(255)}/${long}`, content: "below" },
      { path: "n".repeat(254), content: "254" },
      { path: `${wide}x`, content: "wide" },
      { path: "link", type: "symlink", target: long },
    ]);
    expect(await names(appliance, image, "/")).toEqual(expect.arrayContaining([long, "n".repeat(254), `${wide}x`]));
    expect(await (await download(appliance, image, "/link")).text()).toBe("255");
    expect(await (await download(appliance, image, `/${"d".repeat(255)}/${long}`)).text()).toBe("below");
    const run = await execute(appliance, { image, command: `cat /${long} /${wide}x; ls / | wc -l`, shell: true });
    expect(run.out).toStartWith("255wide");
  });

  test("a directory of 20,000 entries", async () => {
    const { image, seconds } = await imported(
      "20000-entries",
      range(20_000).map((index) => empty(`many/entry-${index}`)),
    );
    expect(seconds).toBeLessThan(100);
    expect(await list(appliance, image, "/many")).toHaveLength(20_000);
    const text = await appliance.fetch(`/inspect/${image}/list?path=/many&text=true`);
    expect((await text.text()).trim().split("\n")).toHaveLength(20_000);
    const run = await execute(appliance, { image, command: "ls /many | wc -l", shell: true });
    expect(run.out).toBe("20000\n");
  });

  test("100,000 files", async () => {
    const entries = range(100_000).map((index) => empty(`files/${Math.floor(index / 1000)}/${index}`));
    const { image, seconds } = await imported("100000-files", entries);
    expect(seconds).toBeLessThan(150);
    expect(await list(appliance, image, "/files/99")).toHaveLength(1000);
    const exists = await appliance.fetch(`/inspect/${image}/?path=/files/50/50500`, { method: "HEAD" });
    expect(exists.status).toBe(200);
    const run = await execute(appliance, { image, command: "ls /files/37 | head -2; rm /files/1/1001", shell: true });
    expect(run).toMatchObject({ exit_code: 0, out: "37000\n37001\n" });
  });

  test("a file of 64 MiB, which can be read in parts", async () => {
    const content = Buffer.alloc(64 * MIB, "0123456789abcdef");
    const { image } = await imported("large-file", [{ path: "large", content }]);
    const response = await appliance.fetch(`/inspect/${image}/download?path=/large`, {
      headers: { range: "bytes=67108856-67108863" },
    });
    expect([response.status, await response.text()]).toEqual([206, "89abcdef"]);
  });
});

describe("an image cannot", () => {
  test("fill the disk of the service: one that unpacks to more than the free space ends FAILED insufficient_storage", async () => {
    const bomb = Buffer.alloc(400 * MIB);
    const reference = await pushImage(registry, "bomb:1", { layers: [[{ path: "zeros", content: bomb }]] });
    // Others use and free the space of the disk for temporary files.
    await using disk = await SmallDisk.make(1024 * MIB, 20_000);
    const reserve = (await disk.freeBytes()) - 150 * MIB;
    await using small = await Appliance.start({
      parent: disk.path,
      registries: [registry.host],
      poolSize: 0,
      flags: ["--limits-disk-reserve-bytes", String(reserve)],
    });
    const operation = await small.finished(await small.submitImport(reference));
    expect(operation).toMatchObject({ status: "FAILED", error: { error: "insufficient_storage" } });
    await until("nothing is left", async () => (await small.leftovers()).length === 0);
  });

  test("put a file outside of itself, by .. or through a symlink", async () => {
    const cases: [string, TarEntry[]][] = [
      ["climbing", [{ path: "../../escape", content: "x" }]],
      [
        "through-a-link",
        [
          { path: "way", type: "symlink", target: "/../../.." },
          { path: "way/escape", content: "x" },
        ],
      ],
    ];
    for (const [name, entries] of cases) {
      const reference = await pushImage(registry, `${name}:1`, { layers: [entries] });
      const operation = await appliance.finished(await appliance.submitImport(reference));
      // Whether the tool refuses the entry or keeps it inside, the host has no such file.
      expect(["SUCCESS", "FAILED"]).toContain(operation.status);
      expect(await Bun.file("/escape").exists()).toBe(false);
      expect(await Bun.file(`${appliance.dataDir}/../escape`).exists()).toBe(false);
    }
  });
});
