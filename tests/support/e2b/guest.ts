import { existsSync } from "node:fs";
import { mkdir, rename } from "node:fs/promises";
import { join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { digestOf } from "../images/registry.ts";
import { tar } from "../images/tar.ts";

const CACHE = resolve(import.meta.dir, "../../../build/e2b");
const SCRIPT = join(import.meta.dir, "guest-root.sh");
/** Enough for a mirror that is far away. */
const ROOT_MS_MAX = 1_200_000;
const LOG_BYTES_MAX = 16_777_216;

const IMAGE = "application/vnd.oci.image";

/**
 * An OCI layout archive with the Debian of `guest-root.sh`, for `coppice image load`. It is built if it is missing, which needs
 * a network and some minutes.
 * @returns its path
 */
export async function guestArchive(): Promise<string> {
  const archive = join(CACHE, `guest-${digestOf(await Bun.file(SCRIPT).bytes()).slice(7, 23)}.tar`);
  if (existsSync(archive)) return archive;
  process.stderr.write("building a Debian guest, once: this needs a network and some minutes\n");
  await mkdir(CACHE, { recursive: true });
  const root = `${archive}.root`;
  const argv = ["nice", "-n", "5", "bash", SCRIPT, root];
  await run({ argv, timeoutMs: ROOT_MS_MAX, stdoutBytesMax: LOG_BYTES_MAX });
  const parts = `${archive}.parts`;
  await Bun.write(parts, layout(await Bun.file(root).bytes()));
  await rename(parts, archive);
  await Bun.file(root).delete();
  return archive;
}

/** @param root a tar archive compressed with zstd: the only layer of the image */
function layout(root: Uint8Array): Buffer {
  const blobs: { readonly digest: string; readonly content: Uint8Array }[] = [];
  const blob = (mediaType: string, content: Uint8Array) => {
    const digest = digestOf(content);
    blobs.push({ digest, content });
    return { mediaType, digest, size: content.length };
  };
  const config = {
    architecture: "amd64",
    os: "linux",
    rootfs: { type: "layers", diff_ids: [digestOf(Bun.zstdDecompressSync(root))] },
  };
  const manifest = {
    schemaVersion: 2,
    mediaType: `${IMAGE}.manifest.v1+json`,
    config: blob(`${IMAGE}.config.v1+json`, Buffer.from(JSON.stringify(config))),
    layers: [blob(`${IMAGE}.layer.v1.tar+zstd`, root)],
  };
  const index = {
    schemaVersion: 2,
    manifests: [blob(manifest.mediaType, Buffer.from(JSON.stringify(manifest)))],
  };
  return tar([
    { path: "oci-layout", content: JSON.stringify({ imageLayoutVersion: "1.0.0" }) },
    { path: "index.json", content: JSON.stringify(index) },
    ...blobs.map(({ digest, content }) => ({ path: `blobs/sha256/${digest.slice(7)}`, content })),
  ]);
}
