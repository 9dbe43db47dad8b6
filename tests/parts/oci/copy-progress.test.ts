import { expect, test } from "bun:test";
import { appendFile, mkdir, rename, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type CopyProgress, watchCopy } from "../../../src/oci/copy-progress.ts";
import type { Descriptor } from "../../../src/oci/manifest.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { until } from "../../support/waiting.ts";

const SEEN_MS_MAX = 10_000;

const hex = (count: number) => count.toString(16).padStart(64, "0");
const layer = (count: number, size: number): Descriptor => ({
  mediaType: "application/vnd.oci.image.layer.v1.tar",
  digest: `sha256:${hex(count)}`,
  size,
});

/** Reports, and the latest of each layer; fails when a figure goes back. */
function recorder() {
  const bytes = new Map<string, number>();
  const reports: CopyProgress[] = [];
  const take = (report: CopyProgress): void => {
    const { layers, pulledBytes } = report;
    expect(pulledBytes).toBeGreaterThan(reports.at(-1)?.pulledBytes ?? 0);
    reports.push(report);
    for (const { digest, pulledBytes: pulled } of layers) {
      expect(pulled).toBeGreaterThan(bytes.get(digest) ?? 0);
      bytes.set(digest, pulled);
    }
  };
  const pulled = (count: number) => bytes.get(`sha256:${hex(count)}`) ?? 0;
  const sees = async (count: number, size: number) =>
    await until(`layer ${count} has ${size} bytes`, () => pulled(count) === size, SEEN_MS_MAX);
  return { take, reports, pulled, sees };
}

test("partial files are layers in the order of their starts, and names correct a wrong assignment", async () => {
  await using scratch = await scratchDirectory(tmpdir(), "copy-progress-");
  const copy = join(scratch.path, "copy");
  const { take, reports, pulled, sees } = recorder();
  await using watch = watchCopy(copy, [layer(1, 100), layer(2, 50), layer(1, 100), layer(3, 10)], take);
  await mkdir(copy);
  const partial = (name: string) => join(copy, `dir-put-blob${name}`);
  await writeFile(partial("a"), "a".repeat(40));
  await sees(1, 40);
  await writeFile(partial("b"), "b".repeat(30));
  await sees(2, 30);
  await appendFile(partial("a"), "a".repeat(20));
  await sees(1, 60);
  // The second file is the first layer after all: the reported progress of the layers stays, and the other file is the second.
  await appendFile(partial("b"), "b".repeat(70));
  await rename(partial("b"), join(copy, hex(1)));
  await sees(1, 100);
  // One byte less than its size, as long as the file has no final name.
  await sees(2, 49);
  await rename(partial("a"), join(copy, hex(2)));
  await sees(2, 50);
  expect(pulled(3)).toBe(0);
  await watch.finish();
  expect(pulled(3)).toBe(10);
  expect(reports.at(-1)).toMatchObject({ sizeBytes: 160, pulledBytes: 160 });
});

test("the end reports thousands of layers in parts", async () => {
  await using scratch = await scratchDirectory(tmpdir(), "copy-progress-");
  const { take, reports } = recorder();
  const layers = Array.from({ length: 4096 }, (_, index) => layer(index, 3));
  await using watch = watchCopy(join(scratch.path, "copy"), layers, take);
  await watch.finish();
  expect(reports.at(-1)?.pulledBytes).toBe(3 * 4096);
  expect(Math.max(...reports.map((report) => report.layers.length))).toBe(32);
  const reported = new Set(reports.flatMap((report) => report.layers.map(({ digest }) => digest)));
  expect(reported.size).toBe(4096);
});
