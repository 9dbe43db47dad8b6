import { afterEach, beforeEach, expect, test } from "bun:test";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { LayerId } from "../../../src/domain/ids.ts";
import type { GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { indexPath, layerPath } from "../../../src/storage/layers/layers.ts";
import { type DataLayout, dataLayout } from "../../../src/storage/layout.ts";
import type { LayerFiles } from "../../../src/storage/tree/open-layers.ts";
import { makeLayer } from "../../support/api/layers.ts";
import { testDirectory } from "../../support/images/layer-files.ts";

const never = new AbortController().signal;

let layout: DataLayout;
let base: LayerId;
let top: LayerId;
let store: LayerStore;
beforeEach(async () => {
  layout = dataLayout(testDirectory("layer-store"));
  await layout.ensure();
  base = (await makeLayer(layout, [{ path: "below", type: "f", content: "base" }])).id;
  top = (await makeLayer(layout, [{ path: "above", type: "f", content: "top" }])).id;
  store = new LayerStore({ layout, chainOf: (id) => (id === top ? [base, top] : [id]) });
});
afterEach(() => {
  store[Symbol.dispose]();
  rmSync(layout.root, { recursive: true });
});

test("an open chain holds its layers and has the paths of their files, until it is closed", async () => {
  const freed: LayerId[] = [];
  using _freed = store.onFreed((ids) => void freed.push(...ids));
  const chain = store.open(top);
  const other = store.hold([base]);
  expect(chain.ids).toEqual([base, top]);
  expect(chain.files.map(({ disk }) => disk)).toEqual([base, top].map((id) => layerPath(layout, id)));
  expect([store.held, store.isHeld(top), store.deferIfHeld(base), store.deferIfHeld(top)]).toEqual([
    [base, top],
    true,
    true,
    true,
  ]);
  const tree = chain.tree(never);
  const names = (await Array.fromAsync(await tree.list("/" as GuestPath))).map(({ name }) => String(name));
  expect(names).toEqual(["above", "below"]);
  const resolved = await tree.stat("/below" as GuestPath, { follow: true });
  expect((await tree.read(resolved)).toString()).toBe("base");
  chain[Symbol.dispose]();
  chain[Symbol.dispose]();
  expect(() => chain.files).toThrow("no longer held");
  expect(() => chain.tree(never)).toThrow("no longer held");
  expect([freed, store.held]).toEqual([[top], [base]]);
  other[Symbol.dispose]();
  expect([freed, store.held]).toEqual([[top, base], []]);
});

test("a published layer is closed and removed again unless it is kept", async () => {
  const publish = async () => {
    const { id, diskBytes, entryCount } = await makeLayer(layout, [{ path: "f", type: "f", content: "x" }]);
    const parts = { diskPath: join(layout.tmp, id), indexPath: join(layout.tmp, `${id}-index`) };
    await Bun.write(parts.diskPath, Bun.file(layerPath(layout, id)));
    await Bun.write(parts.indexPath, Bun.file(indexPath(layout, id)));
    return await store.publish(parts, { diskBytes, entryCount });
  };
  const kept = await publish();
  const given = await publish();
  {
    using reader = store.hold([given.id]);
    await reader.tree(never).stat("/f" as GuestPath, { follow: true });
    const [files] = reader.files as [LayerFiles];
    using _lease = reader.openLayers.acquire(files);
    await given[Symbol.asyncDispose]();
    // It is no longer open for other callers.
    expect(() => reader.openLayers.acquire(files)).toThrow("ENOENT");
  }
  kept.keep();
  await kept[Symbol.asyncDispose]();
  expect([await store.has(kept.id), await store.has(given.id)]).toEqual([true, false]);
  // The disk and the index.
  expect(await store.sizeBytes(kept.id)).toBeGreaterThan(kept.sizeBytes);
  expect(await store.sizeBytes(given.id)).toBe(0);
  expect([existsSync(layerPath(layout, given.id)), existsSync(indexPath(layout, given.id))]).toEqual([false, false]);
  const all = (await Array.fromAsync(store.batches())).flat();
  expect(new Set(all)).toContain(kept.id);
});
