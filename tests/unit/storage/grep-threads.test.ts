import { afterAll, beforeAll, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import type { GuestPath } from "../../../src/domain/guest-path.ts";
import type { GrepRequest } from "../../../src/storage/grep.ts";
import { grepThreads } from "../../../src/storage/grep-threads.ts";
import type { LayerFiles } from "../../../src/storage/open-layers.ts";
import { filesOpenBelow, makeLayer, testDirectory } from "../../support/layer-files.ts";

const LAYERS_COUNT = 5;
const TEXT = Buffer.alloc(4 * 1_048_576, "a line with a needle\n");

const directory = testDirectory("grep-threads");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const layers: LayerFiles[] = [];
beforeAll(async () => {
  for (let n = 0; n < LAYERS_COUNT; n++) {
    const extents = [[0, 0, TEXT.length]] as const;
    layers.push(await makeLayer(directory, [{ path: `f${n}`, type: "f", size: BigInt(TEXT.length), extents }], TEXT));
  }
}, 60_000);

const request = (pattern: string): GrepRequest => ({ layers, path: "/" as GuestPath, pattern, glob: null, limit: 10 });
const never = new AbortController().signal;

test("searches leave no file open, whatever they come to", async () => {
  const all = await grepThreads.run(request("no such text"), never);
  expect(all).toMatchObject({ found: [], bounds: [], fileCount: LAYERS_COUNT });
  expect((await grepThreads.run(request("needle"), never)).bounds).toEqual(["limit"]);
  await expect(grepThreads.run(request("(("), never)).rejects.toThrow("pattern is not valid");
  const missing = { ...request("needle"), path: "/none" as GuestPath };
  await expect(grepThreads.run(missing, never)).rejects.toThrow("no such file");
  expect(filesOpenBelow(directory)).toEqual([]);
}, 60_000);

test("a search that nobody waits for any more ends by itself, and leaves no file open", async () => {
  for (const delayMs of [0, 10, 50, 100]) {
    const left = new AbortController();
    const search = grepThreads.run(request("(a|l|w)+ no such text"), left.signal);
    const outcome = search.then(
      () => "finished",
      (error: unknown) => (error as Error).message,
    );
    await Bun.sleep(delayMs);
    left.abort(new Error("left"));
    expect(["finished", "left"]).toContain(await outcome);
    expect(filesOpenBelow(directory)).toEqual([]);
  }
}, 60_000);
