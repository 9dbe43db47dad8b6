/**
 * Uploaded archives that were damaged at random, at every depth: the tar around them, the documents in them, the compressed
 * layers, and the archives in the layers. COPPICE_TEST_ARCHIVES is their number (60), COPPICE_TEST_SEED the seed.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { gzipSync } from "node:zlib";
import { layer, layerOf, layoutFiles, rawImage } from "../support/images/hostile-images.ts";
import { type Ended, HostileImports } from "../support/images/hostile-imports.ts";
import { type TarEntry, tar } from "../support/images/tar.ts";
import { seededRandom, seedOfTests } from "../support/random.ts";

const COUNT_DEFAULT = 60;
const AT_ONCE_COUNT = 3;
const START_MS_MAX = 120_000;
/** Each import starts programs and waits in the queue. */
const ARCHIVE_MS_MAX = 20_000;
const BLOCK_BYTES = 512;

const count = Number(process.env["COPPICE_TEST_ARCHIVES"] ?? COUNT_DEFAULT);
const seed = seedOfTests();
const random = seededRandom(seed);

let imports: HostileImports;
beforeAll(async () => {
  imports = await HostileImports.start(["--limits-image-bytes-max", "64MiB", "--limits-image-entries-max", "5000"]);
}, START_MS_MAX);
afterAll(() => imports[Symbol.asyncDispose]());

test(
  `${count} damaged archives become images or are refused with a reason (seed ${seed})`,
  async () => {
    const endings: Record<string, number> = {};
    const problems: string[] = [];
    for (let start = 0; start < count; start += AT_ONCE_COUNT) {
      const archives = Array.from({ length: Math.min(AT_ONCE_COUNT, count - start) }, damagedArchive);
      for (const ended of await Promise.all(archives.map((archive) => imports.loading(archive)))) {
        const ending = ended.error?.error ?? ended.status;
        endings[ending] = (endings[ending] ?? 0) + 1;
        if (!isInOrder(ended)) problems.push(JSON.stringify(ended));
      }
    }
    process.stderr.write(`seed ${seed}: ${JSON.stringify(endings)}\n`);
    expect(problems).toEqual([]);
    await imports.expectNothingTouched();
    // The fuzz proves nothing when everything is refused early, or nothing is refused.
    expect(Object.keys(endings).length).toBeGreaterThan(1);
  },
  START_MS_MAX + count * ARCHIVE_MS_MAX,
);

/** A damaged archive is the client's error, whose message contains no path of the host. */
function isInOrder({ status, error }: Ended): boolean {
  if (status === "SUCCESS") return true;
  return error?.error === "validation_error" && !JSON.stringify(error).includes(imports.appliance.dataDir);
}

function damagedArchive(): Uint8Array<ArrayBuffer> {
  const entries: TarEntry[] = [
    { path: "./", type: "directory" },
    { path: "bin/", type: "directory", mode: 0o1777 },
    { path: "bin/file", content: "content", xattrs: { "user.x": "y" }, uid: random.below(2 ** 31) },
    { path: "link", type: "symlink", target: "bin/file" },
    { path: "hard", type: "hardlink", target: "bin/file" },
    { path: "pipe", type: "fifo" },
    { path: "n".repeat(180), content: "long" },
  ];
  const depth = random.below(4);
  const inner = tar(entries);
  const first = depth === 0 ? layerOf(damaged(inner)) : layer(...entries);
  const second = depth === 1 ? { ...layer(), blob: damaged(gzipSync(inner)) } : layer({ path: ".wh.hard" });
  const files = layoutFiles(rawImage([first, second])).map((entry) =>
    depth === 2 && random.below(2) === 0 ? { ...entry, content: damaged(Buffer.from(entry.content ?? "")) } : entry,
  );
  const archive = tar(files);
  const outer = depth === 3 ? damaged(archive) : archive;
  return new Uint8Array(random.below(8) === 0 ? gzipSync(outer) : outer);
}

/** The bytes with a few of them changed, removed, doubled or moved. */
function damaged(bytes: Buffer): Buffer {
  let result = Buffer.from(bytes);
  for (let times = 1 + random.below(3); times > 0; times--) {
    const at = random.below(Math.max(1, result.length));
    const block = at - (at % BLOCK_BYTES);
    const piece = result.subarray(block, block + BLOCK_BYTES);
    const kinds = [
      () => result.fill(random.below(256), at, Math.min(result.length, at + 1 + random.below(4))),
      () => result.subarray(0, at),
      () => Buffer.concat([result.subarray(0, block), piece, result.subarray(block)]),
      () => Buffer.concat([result.subarray(0, block), result.subarray(block + BLOCK_BYTES)]),
      () => Buffer.concat([result, random.bytes(random.below(2000))]),
    ];
    result = Buffer.from((kinds[random.below(kinds.length)] ?? kinds[0])?.() ?? result);
  }
  return result;
}
