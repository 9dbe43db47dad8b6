import { join } from "node:path";
import { timed } from "../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../src/cli/bench/row.ts";
import { run } from "../../src/system/exec.ts";
import { busyboxImage, type ImageSpec, pushImage } from "../support/images/images.ts";
import { openBareImport } from "./bare-import.ts";
import type { BenchHost } from "./host.ts";

const SYNC_MS = 300_000;
const FILE_BYTES = 16_384;
const PER_DIRECTORY = 50;
/** The contents of images of a language's run time. */
const FILES_COUNT = 5000;

/** A root file system of many files; `round` makes each another image. */
export async function treeImage(files: number, round: number): Promise<ImageSpec> {
  const { layers } = await busyboxImage();
  const directories = Math.ceil(files / PER_DIRECTORY);
  const tree = [...Array(directories).keys()].map((index) => ({ path: `data/${index}/`, type: "directory" }) as const);
  const contents = [...Array(files).keys()].map((index) => ({
    path: `data/${index % directories}/file-${index}`,
    content: Buffer.alloc(FILE_BYTES, crypto.getRandomValues(new Uint8Array(512))),
  }));
  const root = { path: "data/", type: "directory" } as const;
  return { layers: [[...(layers[0] ?? []), root, ...tree, ...contents, { path: "round", content: String(round) }]] };
}

/** An import with all that belongs to it, against the three programs that every import of this kind runs, confined alike. */
export async function* importRows(host: BenchHost): AsyncGenerator<Finding> {
  const ours: number[] = [];
  const theirs: number[] = [];
  // In the directory where the appliance unpacks: how long a file takes to be made depends on what was removed around it before.
  await using bare = await openBareImport(host.registry, join(host.appliance.dataDir, "tmp"));
  for (let round = 0; round < host.target.rounds(7, 3); round++) {
    const reference = await pushImage(host.registry, `tree-${round}:latest`, await treeImage(FILES_COUNT, round));
    await host.target.poolFull();
    const both = [
      async () => ours.push(await timed(() => host.appliance.importImage(reference))),
      async () => theirs.push(await bare.measure(reference)),
    ];
    // The second client finds the registry's files in the page cache.
    for (const measure of round % 2 === 0 ? both : both.reverse()) {
      // One must not wait for the writes of the other.
      await run({ argv: ["sync"], timeoutMs: SYNC_MS });
      await measure();
    }
  }
  yield rowOf({
    name: `import of ${FILES_COUNT} files, listing included`,
    from: "POST /v1/images/import, sent",
    to: "GET /v1/operations/{id}?wait, SUCCESS read",
    values: ours,
    unit: "ms",
    against: { name: "skopeo copy, umoci unpack and mkfs.erofs alone, confined as well", values: theirs },
    atMost: 1.1,
  });
}
