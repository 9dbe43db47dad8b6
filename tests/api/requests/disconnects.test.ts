/** The work for a client ends when the client has left, and releases what it held. */

import { afterAll, beforeAll, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { Api } from "../../support/api/api.ts";
import { filesOpenBelow, listLayers } from "../../support/images/layer-files.ts";
import { pause, until } from "../../support/waiting.ts";

const GIB = 1_073_741_824;
/** More than anything reads in the time of a test. */
const ENDLESS_BYTES = 1024 * GIB;
const CLIENTS_COUNT = 4;
/** More than reading `/proc` takes. */
const BUSY_BYTES = 65_536;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

/** `bytes` that the daemon has read by system calls. */
function readBytes(): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync(`/proc/${api.parts.pid}/io`, "latin1"))?.[1]);
}

/** Resolves when the daemon reads next to nothing; while it works on an image, it always reads more. */
async function untilIdle(): Promise<void> {
  for (let quietCount = 0; quietCount < 10; ) {
    const before = readBytes();
    await pause("reads are counted over this time", 20);
    quietCount = readBytes() - before < BUSY_BYTES ? quietCount + 1 : 0;
  }
}

async function leave(path: string): Promise<void> {
  const leaving = new AbortController();
  const headers = { authorization: `Bearer ${api.token}`, "accept-encoding": path.endsWith("#") ? "gzip" : "identity" };
  const response = await fetch(`${api.url}${path.replace("#", "")}`, { headers, signal: leaving.signal });
  expect(response.status).toBe(200);
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  await reader.read();
  leaving.abort();
}

test.each(["save", "archive", "archive#", "download"])(
  "a client that leaves in the middle of a %s of a terabyte ends it",
  async (what) => {
    const before = (await listLayers(api.parts.layout)).size;
    const parts = [
      { at: 0, bytes: ENDLESS_BYTES / 2 },
      { at: ENDLESS_BYTES / 2 + 4096, bytes: ENDLESS_BYTES / 2 - 4096 },
    ];
    const image = await api.addImage([[{ path: "endless", type: "f", parts, size: ENDLESS_BYTES }]]);
    const path =
      what === "save" ? `/v1/images/${image}/save` : `/v1/inspect/${image}/${what.replace("#", "?path=/endless#")}`;
    const asked = what === "archive" || what === "download" ? `${path}?path=/endless` : path;
    await Promise.all(Array.from({ length: CLIENTS_COUNT }, () => leave(asked)));
    expect((await api.call("DELETE", `/v1/images/${image}`)).status).toBe(204);
    // A layer with a reader would stay, with its open files.
    await until("its layer is removed", async () => (await listLayers(api.parts.layout)).size === before);
    await until("no layer is open", () => filesOpenBelow(api.parts.layout.layers, api.parts.pid).length === 0);
    await untilIdle();
  },
  60_000,
);
