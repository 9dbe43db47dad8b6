import { afterEach, beforeEach, expect, test } from "bun:test";
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { isIndexIntact } from "../../../src/storage/index/index-check.ts";
import { LayerIndex } from "../../../src/storage/index/layer-index.ts";
import { LayerIndexError } from "../../../src/storage/index/layer-index-format.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { makeLayer, testDirectory } from "../../support/images/layer-files.ts";

const VERSION_OFFSET = 8;

let directory: string;
let bytes: Buffer;
beforeEach(async () => {
  directory = testDirectory("index-check");
  const { index } = await makeLayer(directory, [
    { path: "a", type: "d" },
    { path: "b", type: "l", target: "a" },
  ]);
  expect(await isIndexIntact(index)).toBe(true);
  bytes = await readFile(index);
});
afterEach(() => rm(directory, { recursive: true }));
const at = (name: string): string => join(directory, name);

test("an index detects any changed byte", async () => {
  for (const offset of [64, bytes.length - 1]) {
    const copy = Buffer.from(bytes);
    copy.writeUInt8((copy.readUInt8(offset) + 1) % 256, offset);
    await writeFile(at("damaged"), copy);
    expect(await isIndexIntact(at("damaged"))).toBe(false);
  }
  await writeFile(at("damaged"), bytes.subarray(0, 70));
  expect(await throwing(isIndexIntact(at("damaged")))).toThrow(LayerIndexError);
});

test.each([-1, 1])("an index of another version (%d) is refused", async (difference) => {
  const version = bytes.readUInt32LE(VERSION_OFFSET) + difference;
  const copy = Buffer.from(bytes);
  copy.writeUInt32LE(version, VERSION_OFFSET);
  await writeFile(at("other"), copy);
  const refusal = { name: "LayerIndexError", message: `layer index of version ${version} is not supported` };
  expect(await failureOf(isIndexIntact(at("other")))).toMatchObject(refusal);
  expect(() => LayerIndex.open(at("other"))).toThrow(refusal.message);
});
