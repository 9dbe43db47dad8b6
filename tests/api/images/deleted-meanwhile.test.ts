import { afterAll, beforeAll, describe, expect, spyOn, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { rmSync } from "node:fs";
import { silentLog } from "../../../src/log.ts";
import { layerPath } from "../../../src/storage/layers/layers.ts";
import { Api } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";
import { listLayers } from "../../support/images/layer-files.ts";
import { until } from "../../support/waiting.ts";

const ENTRIES_COUNT = 20_000;
const LONG = "n".repeat(200);
const entries = Array.from(
  { length: ENTRIES_COUNT },
  (_, index): LayerFixture => ({ path: `${index}-${LONG}`, type: "f", content: "" }),
);
/** Two extents with a hole between them are not contiguous on the disk. */
const piece = randomBytes(12_000_000);
const HOLE_BYTES = 4096;
const scattered: LayerFixture = {
  path: "scattered",
  type: "f",
  parts: [
    { at: 0, bytes: piece },
    { at: piece.length + HOLE_BYTES, bytes: piece },
  ],
  size: 2 * piece.length + HOLE_BYTES,
};
const content = Buffer.concat([piece, Buffer.alloc(HOLE_BYTES), piece]);

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const remove = async (id: string) => (await api.call("DELETE", `/v1/images/${id}`)).status;
const layers = async () => (await listLayers(api.parts.layout)).size;

async function begin(id: string, what: string, signal?: AbortSignal) {
  const headers = { authorization: `Bearer ${api.token}` };
  const response = await fetch(`${api.url}/v1/inspect/${id}/${what}`, { headers, ...(signal && { signal }) });
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  const first = await reader.read();
  return { reader, chunks: [Buffer.from(first.value ?? [])] };
}

async function bytesOf({ reader, chunks }: Awaited<ReturnType<typeof begin>>): Promise<Buffer> {
  for (let step = await reader.read(); !step.done; step = await reader.read()) chunks.push(Buffer.from(step.value));
  return Buffer.concat(chunks);
}

describe("an image that is deleted while it is read", () => {
  test("returns its whole listing", async () => {
    for (const text of [false, true]) {
      const id = await api.addImage([entries]);
      const begun = await begin(id, `list?path=/&text=${text}`);
      expect(await remove(id)).toBe(204);
      const all = (await bytesOf(begun)).toString();
      expect(text ? all.split("\n").length - 1 : JSON.parse(all).items.length).toBe(ENTRIES_COUNT);
    }
  }, 60_000);

  test("returns a whole file, also one in several extents", async () => {
    const id = await api.addImage([[scattered]]);
    const begun = await begin(id, "download?path=/scattered");
    expect(await remove(id)).toBe(204);
    expect((await bytesOf(begun)).equals(content)).toBe(true);
  }, 60_000);

  test("returns a whole contiguous file, although its layer is removed once nothing holds it", async () => {
    // Done in this process, whose holds can be observed.
    await using own = await Api.start({ log: silentLog });
    const id = await own.addImage([[{ path: "whole", type: "f", content: piece }]]);
    const removed: string[] = [];
    const store = own.parts.layers;
    using _freed = store.onFreed((ids) => {
      for (const each of ids) rmSync(layerPath(own.parts.layout, each));
      removed.push(...ids);
    });
    const hold = store.hold.bind(store);
    using _hold = spyOn(store, "hold").mockImplementation((ids) => {
      const held = hold(ids);
      for (const each of ids) store.deferIfHeld(each);
      return held;
    });
    const { status, bytes } = await own.call("GET", `/v1/inspect/${id}/download?path=/whole`);
    expect([status, Buffer.from(bytes).equals(piece)]).toEqual([200, true]);
    // The last bytes are sent before their reader releases the layer.
    await until("its layer is removed", () => removed.length > 0);
    expect(removed).toHaveLength(1);
  });

  test("is held only while it is read", async () => {
    // Those of the tests before may be removed only now.
    await until("there is no layer", async () => (await layers()) === 0);
    for (const what of ["list?path=/", "download?path=/scattered"]) {
      const id = await api.addImage([[...entries, scattered]]);
      expect((await api.call("HEAD", `/v1/inspect/${id}/${what}`)).status).toBe(200);
      await api.call("GET", `/v1/inspect/${id}/${what}`);
      const leaving = new AbortController();
      await begin(id, what, leaving.signal);
      leaving.abort();
      expect(await remove(id)).toBe(204);
      await until("its layer is removed", async () => (await layers()) === 0);
    }
  }, 60_000);
});
