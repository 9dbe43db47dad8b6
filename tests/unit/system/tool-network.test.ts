import { expect, test } from "bun:test";
import { closeSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { openPrepared } from "../../../src/system/tool-network.ts";

test("a prepared network that is none is named, and why", async () => {
  await using directory = await scratchDirectory(tmpdir(), "network-");
  const path = join(directory.path, "network");
  expect(() => openPrepared(path)).toThrow(`none was prepared as ${path}: ENOENT`);
  writeFileSync(path, "");
  expect(() => openPrepared(path)).toThrow(`none was prepared as ${path}: nothing is mounted on this file`);
  closeSync(openPrepared("/proc/self/ns/net"));
});
