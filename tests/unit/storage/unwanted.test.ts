/** A guest decides how long an inspection takes: it is limited, yields to others, and ends when its client leaves. */
import { afterAll, beforeAll, describe, expect, spyOn, test } from "bun:test";
import { rmSync } from "node:fs";
import type { ApiError } from "../../../src/domain/errors.ts";
import { NO_DEFAULTS } from "../../../src/domain/image-defaults.ts";
import type { ByteString, GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { archiveChunks } from "../../../src/storage/archive/archive.ts";
import { ociArchiveChunks } from "../../../src/storage/archive/oci-archive.ts";
import { LayerIndex } from "../../../src/storage/index/layer-index.ts";
import { PATH_LOOKUPS_COUNT_MAX, PATH_STEPS_COUNT_MAX } from "../../../src/storage/limits.ts";
import type { Cancellation } from "../../../src/storage/pacer.ts";
import { diffPage } from "../../../src/storage/tree/image-diff.ts";
import { ImageTree } from "../../../src/storage/tree/image-tree.ts";
import { type LayerFiles, OpenLayers } from "../../../src/storage/tree/open-layers.ts";
import { throwing } from "../../support/failures.ts";
import type { TestRecord } from "../../support/images/index-stream.ts";
import { filesOpenBelow, makeLayer, testDirectory } from "../../support/images/layer-files.ts";

const MIB = 1_048_576;
const LINKS_COUNT = 40;
const TARGET_BYTES = 4000;
const LAYERS_COUNT = 41;
const ENTRIES_COUNT = 50_000;

const directory = testDirectory("unwanted");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const at = (path: string) => path as GuestPath;
const file = (path: string): TestRecord => ({ path, type: "f" });

/** Layers of which the first has `links`, each to `target` of its number; the others have few entries. */
async function linkedLayers(target: (number: number) => string, more: readonly TestRecord[]): Promise<LayerFiles[]> {
  const links = Array.from({ length: LINKS_COUNT }, (_, number): TestRecord => {
    const path = `${target(number).slice(0, TARGET_BYTES)}l${number + 1}`;
    return { path: `l${number}`, type: "l", target: path };
  });
  const layers = [await makeLayer(directory, [...more, ...links, file(`l${LINKS_COUNT}`)])];
  while (layers.length < LAYERS_COUNT) layers.push(await makeLayer(directory, [file(`f${layers.length}`)]));
  return layers;
}

/** The outcome of looking up the first link, and how often it searched a directory of a layer. */
async function lookUp(layers: readonly LayerFiles[], open: OpenLayers) {
  const search = spyOn(LayerIndex.prototype, "child");
  using _search = { [Symbol.dispose]: () => search.mockRestore() };
  const outcome = await new ImageTree(layers, open).stat(at("/l0"), { follow: true }).then(
    ({ path }): string => path,
    (error: ApiError) => `${error.code}: ${error.message}`,
  );
  return { outcome, searchCount: search.mock.calls.length };
}

describe("a look-up", () => {
  test("of links that go through one directory repeatedly ends soon, and searches it once in every layer", async () => {
    using open = new OpenLayers(LAYERS_COUNT);
    const layers = await linkedLayers(() => "x/../".repeat(TARGET_BYTES / 5), [{ path: "x", type: "d" }]);
    const { outcome, searchCount } = await lookUp(layers, open);
    expect(outcome).toBe("invalid_path: too many components behind symbolic links");
    expect(searchCount).toBeLessThan(10 * LAYERS_COUNT);
  }, 60_000);

  test("of links through many directories searches no more of them than the steps allow", async () => {
    using open = new OpenLayers(LAYERS_COUNT);
    const names = Array.from({ length: 500 }, (_, number) => `n${100 + number}`);
    const steps = names.map((name) => `${name}/../`).join("");
    const layers = await linkedLayers(
      () => steps,
      names.map((path) => ({ path, type: "d" })),
    );
    const { outcome, searchCount } = await lookUp(layers, open);
    expect(outcome).toBe("invalid_path: too many components behind symbolic links");
    expect(searchCount).toBeLessThan(PATH_STEPS_COUNT_MAX * LAYERS_COUNT);
  }, 60_000);

  test("through many directories in many layers is refused before it takes long", async () => {
    using open = new OpenLayers(LAYERS_COUNT);
    const path = "/d".repeat(2047);
    const records = Array.from(
      { length: 2047 },
      (_, depth): TestRecord => ({
        path: "d/".repeat(depth + 1).slice(0, -1),
        type: "d",
      }),
    );
    const layer = await makeLayer(directory, records);
    const stat = (count: number) =>
      new ImageTree(
        Array.from({ length: count }, () => layer),
        open,
      ).stat(at(path), { follow: true });
    expect((await stat(Math.floor(PATH_LOOKUPS_COUNT_MAX / 2047))).path).toBe(at(path));
    const refusal = await stat(200).catch((error: unknown) => error);
    expect(refusal).toMatchObject({ code: "invalid_path" });
  }, 60_000);

  test("follows realistic links: 40 of them, and one followed by the longest path", async () => {
    using open = new OpenLayers(2);
    const deep = "d/".repeat(2000).slice(0, -1);
    const records = Array.from(
      { length: 2000 },
      (_, depth): TestRecord => ({
        path: "d/".repeat(depth + 1).slice(0, -1),
        type: "d",
      }),
    );
    const layers = [await makeLayer(directory, [...records, { path: "link", type: "l", target: deep }])];
    const tree = new ImageTree(layers, open);
    expect((await tree.stat(at("/link"), { follow: true })).path).toBe(at(`/${deep}`));
    const chain = await linkedLayers(() => "", []);
    expect((await lookUp(chain, open)).outcome).toBe(`/l${LINKS_COUNT}`);
  });
});

/** Reports at its first check that the client has left. */
const gone: Cancellation = {
  throwIfAborted: () => {
    throw new Error("the client has gone");
  },
};

describe("when the client has left", () => {
  const DISK_BYTES = 512 * MIB;
  let layer: LayerFiles;
  let other: LayerFiles;
  const open = new OpenLayers(4);

  beforeAll(async () => {
    const large: TestRecord = { path: "a", type: "f", size: BigInt(DISK_BYTES), extents: [[0, 0, DISK_BYTES]] };
    const many = Array.from({ length: ENTRIES_COUNT }, (_, number) => file(`f${number}`));
    layer = await makeLayer(directory, [large, ...many], Buffer.alloc(DISK_BYTES));
    // It hides everything, so that most of a listing's work yields nothing.
    other = await makeLayer(
      directory,
      many.map(({ path }) => ({ path, type: "w" })),
    );
  }, 60_000);
  afterAll(() => open[Symbol.dispose]());

  const tree = () => new ImageTree([layer, other], open, gone);

  test("a look-up ends", async () => {
    const name = (number: number) => `n${number}`;
    const layers = await linkedLayers(
      (number) => Array.from({ length: 400 }, (_, step) => `${name(400 * number + step)}/../`).join(""),
      Array.from({ length: 400 * LINKS_COUNT }, (_, number) => ({ path: name(number), type: "d" })),
    );
    const look = new ImageTree(layers, open, gone).stat(at("/l0"), { follow: true });
    expect(await throwing(look)).toThrow("the client has gone");
  }, 60_000);

  test("a listing and a walk end, also while they have nothing to show", async () => {
    const listed = tree()
      .list(at("/"))
      .then((entries) => Array.fromAsync(entries));
    expect(await throwing(listed)).toThrow("the client has gone");
    const resolved = await new ImageTree([layer, other], open).stat(at("/"), { follow: true });
    expect(await throwing(Array.fromAsync(tree().walk(resolved)))).toThrow("the client has gone");
  });

  test("a comparison ends, also of equal images", async () => {
    const alike = { now: [layer, other], before: [other, layer, other] };
    const bounds = { after: null, limit: 10, msMax: 60_000, cancellation: gone };
    expect(await throwing(diffPage(alike, bounds, open))).toThrow("the client has gone");
  });

  test("an archive ends, and so does the digest of a layer", async () => {
    const resolved = await new ImageTree([layer], open).stat(at("/"), { follow: true });
    const archive = archiveChunks(new ImageTree([layer], open), resolved, "" as ByteString, gone);
    expect(await throwing(drain(archive))).toThrow("the client has gone");
    const image = { layers: [layer], name: null, createdAt: "2026-11-20T10:30:00Z", defaults: NO_DEFAULTS };
    expect(await throwing(drain(ociArchiveChunks(image, gone, open)))).toThrow("the client has gone");
  });

  test("a comparison whose time is over can be continued after its last entry", async () => {
    const layers = { now: [layer], before: [other] };
    const paths: string[] = [];
    let after: GuestPath | null = null;
    let pageCount = 0;
    do {
      const page = await diffPage(layers, { after, limit: 1000, msMax: 0, cancellation: null }, open);
      paths.push(...page.differences.map(({ path }) => path));
      after = page.next;
      pageCount++;
    } while (after !== null && pageCount < 100);
    expect(pageCount).toBe(100);
    const all = await diffPage(layers, { after: null, limit: 1000, msMax: 60_000, cancellation: null }, open);
    expect(all.differences.map(({ path }): string => path).slice(0, paths.length)).toEqual(paths);
  });

  test("no file stays open", () => {
    open[Symbol.dispose]();
    expect(filesOpenBelow(directory)).toEqual([]);
  });
});

async function drain(chunks: AsyncIterable<Uint8Array>): Promise<number> {
  let bytes = 0;
  for await (const chunk of chunks) bytes += chunk.length;
  return bytes;
}

test("an image archive yields something after every 64 MiB of hashing", async () => {
  using open = new OpenLayers(1);
  const bytes = 200 * MIB;
  const record: TestRecord = { path: "zeros", type: "f", size: BigInt(bytes), extents: [[0, 0, bytes]] };
  const layer = await makeLayer(directory, [record], Buffer.alloc(bytes));
  const chunks = ociArchiveChunks(
    { layers: [layer], name: null, createdAt: "2026-11-20T10:30:00Z", defaults: NO_DEFAULTS },
    null,
    open,
  );
  const names: string[] = [];
  for await (const chunk of chunks) {
    const name = Buffer.from(chunk.subarray(0, 100)).toString("latin1").replace(/\0.*$/s, "");
    if (name.length > "blobs/sha256/".length) break;
    names.push(name);
  }
  expect(names).toEqual(["blobs/", ...new Array<string>(4).fill("blobs/sha256/")]);
}, 60_000);
