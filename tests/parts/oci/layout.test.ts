import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdir, readdir, readFile, rename, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ApiError } from "../../../src/domain/errors.ts";
import { requireSameImage, verifiedLayout } from "../../../src/oci/layout.ts";
import { run } from "../../../src/system/exec.ts";
import { type ScratchDirectory, scratchDirectory } from "../../../src/system/scratch.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { layer, type RawImage, rawImage } from "../../support/images/hostile-images.ts";
import { digestOf } from "../../support/images/registry.ts";

let scratch: ScratchDirectory;
let copy: string;
let directory: string;
const { signal } = new AbortController();

beforeEach(async () => {
  scratch = await scratchDirectory(tmpdir(), "layout-");
  copy = join(scratch.path, "copy");
  directory = join(scratch.path, "layout");
});
afterEach(async () => await scratch[Symbol.asyncDispose]());

const layers = [layer({ path: "lower", content: "1" }), layer({ path: "upper", content: "2" })];
const image = rawImage(layers);
const nameOf = (digest: string) => digest.replace("sha256:", "");
const lowest = [...image.blobs.keys()][1] ?? "";

/** Writes an image as skopeo's directory transport does. */
async function copied({ manifest, blobs }: RawImage): Promise<void> {
  await rm(copy, { recursive: true, force: true });
  await mkdir(copy);
  await writeFile(join(copy, "version"), "Directory Transport Version: 1.1\n");
  await writeFile(join(copy, "manifest.json"), manifest.bytes);
  for (const [digest, content] of blobs) await writeFile(join(copy, nameOf(digest)), content);
}

async function verifying(of: RawImage, digest = digestOf(of.manifest.bytes)): Promise<string> {
  await rm(directory, { recursive: true, force: true });
  return await verifiedLayout(copy, digest, { directory, signal }).then(
    () => "accepted",
    (error: unknown) => (error instanceof ApiError ? `${error.code}: ${error.message}` : String(error)),
  );
}

test("contains the verified blobs, and a manifest of its own", async () => {
  await copied(image);
  const digest = digestOf(image.manifest.bytes);
  const layout = await verifiedLayout(copy, digest, { directory, signal });
  expect(layout).toMatchObject({ directory, layersCount: 2, isReadable: true });
  expect(await readdir(copy)).toEqual(expect.arrayContaining(["manifest.json", "version"]));
  const index = JSON.parse(await readFile(join(directory, "index.json"), "utf8"));
  expect(index.manifests).toHaveLength(1);
  for (const name of await readdir(join(directory, "blobs/sha256"))) {
    expect(digestOf(await readFile(join(directory, "blobs/sha256", name)))).toBe(`sha256:${name}`);
  }
  await requireSameImage(directory, layout);
  expect(await throwing(requireSameImage(directory, { ...layout, layersCount: 3 }))).toThrow(ApiError);
  expect(await throwing(requireSameImage(directory, { ...layout, configDigest: lowest }))).toThrow(ApiError);
});

test("contains a repeated layer once, and accepts layers in forms that umoci does not read", async () => {
  const [first = layer(), second = first] = layers;
  const repeated = rawImage([first, second, first, first]);
  await copied(repeated);
  expect(await verifying(repeated)).toBe("accepted");
  for (const blob of [
    Bun.zstdCompressSync(Buffer.from("x")),
    Buffer.from("BZh91AY"),
    Buffer.from("\xfd7zXZ\0", "latin1"),
  ]) {
    const packed = rawImage([first, { blob, diffId: first.diffId }]);
    await copied(packed);
    await rm(directory, { recursive: true });
    const layout = await verifiedLayout(copy, digestOf(packed.manifest.bytes), { directory, signal });
    expect(layout.isReadable).toBe(false);
  }
});

describe("is refused", () => {
  const lies: Record<string, () => Promise<unknown>> = {
    "of another manifest": () => writeFile(join(copy, "manifest.json"), rawImage([]).manifest.bytes),
    "of a manifest with one more blank": () => writeFile(join(copy, "manifest.json"), `${image.manifest.bytes} `),
    "without a manifest": () => rm(join(copy, "manifest.json")),
    "without a layer": () => rm(join(copy, nameOf(lowest))),
    "of a layer that is another": () => writeFile(join(copy, nameOf(lowest)), "other"),
    "of a layer with a byte more": () =>
      writeFile(join(copy, nameOf(lowest)), Buffer.concat([image.blobs.get(lowest) ?? Buffer.alloc(0), Buffer.of(0)])),
    "of an empty layer": () => writeFile(join(copy, nameOf(lowest)), ""),
    "of a link to the manifest": async () => {
      await rename(join(copy, "manifest.json"), join(scratch.path, "elsewhere"));
      await symlink(join(scratch.path, "elsewhere"), join(copy, "manifest.json"));
    },
    "of a link to a layer": async () => {
      await rename(join(copy, nameOf(lowest)), join(scratch.path, "elsewhere"));
      await symlink(join(scratch.path, "elsewhere"), join(copy, nameOf(lowest)));
    },
    "of a link to a copy": async () => {
      await rename(copy, join(scratch.path, "elsewhere"));
      await symlink(join(scratch.path, "elsewhere"), copy);
    },
    "of a directory in the place of a layer": async () => {
      await rm(join(copy, nameOf(lowest)));
      await mkdir(join(copy, nameOf(lowest)));
    },
    "of a pipe in the place of a layer": async () => {
      await rm(join(copy, nameOf(lowest)));
      await run({ argv: ["mkfifo", join(copy, nameOf(lowest))], timeoutMs: 5000 });
    },
    "of a pipe in the place of the manifest": async () => {
      await rm(join(copy, "manifest.json"));
      await run({ argv: ["mkfifo", join(copy, "manifest.json")], timeoutMs: 5000 });
    },
  };
  for (const [name, lie] of Object.entries(lies)) {
    test(name, async () => {
      await copied(image);
      await lie();
      expect(await verifying(image)).toStartWith("validation_error: ");
    });
  }

  test("for a size that differs from the blob's, also in one of several descriptors", async () => {
    const [first = layer()] = layers;
    for (const size of [0, 1, 2 ** 40]) {
      for (const several of [[{ ...first, size }], [first, { ...first, size }], [{ ...first, size }, first]]) {
        const lying = rawImage(several);
        await copied(lying);
        expect(await verifying(lying)).toMatch(/^validation_error: .*size mismatch/);
      }
    }
  });

  test("for another platform", async () => {
    const foreign = rawImage(layers, { config: Buffer.from(JSON.stringify({ os: "plan9", architecture: "amd64" })) });
    await copied(foreign);
    expect(await verifying(foreign)).toMatch(/^validation_error: .*plan9/);
  });

  test("once it is cancelled", async () => {
    await copied(image);
    const reason = new Error("cancelled");
    const digest = digestOf(image.manifest.bytes);
    const cancelled = verifiedLayout(copy, digest, { directory, signal: AbortSignal.abort(reason) });
    expect(await failureOf(cancelled)).toBe(reason);
  });
});
