import { expect, test } from "bun:test";
import { closeSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { openPrepared } from "../../../src/system/tool-network.ts";

test("names a prepared file that is not a network, with the reason", async () => {
  await using directory = await scratchDirectory(tmpdir(), "network-");
  const path = join(directory.path, "network");
  expect(() => openPrepared(path)).toThrow(`none was prepared at ${path}: ENOENT`);
  writeFileSync(path, "");
  expect(() => openPrepared(path)).toThrow(`none was prepared at ${path}: nothing is mounted on this file`);
  closeSync(openPrepared("/proc/self/ns/net"));
});
