import { existsSync } from "node:fs";
import { mkdir, readdir } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { digestOf, type Registry } from "../images/registry.ts";
import { tar } from "../images/tar.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const CACHE = join(ROOT, "build/network");
const SCRIPT = join(import.meta.dir, "guest-root.sh");
const PROBE = join(import.meta.dir, "probe.c");
/** Enough for a mirror that is far away. */
const ROOT_MS_MAX = 1_200_000;
const COMPILE_MS = 30_000;
const LOG_BYTES_MAX = 16_777_216;

const MANIFEST = "application/vnd.oci.image.manifest.v1+json";
const CONFIG = "application/vnd.oci.image.config.v1+json";
const LAYER = "application/vnd.oci.image.layer.v1.tar";

/** Paths of the two builds of `probe.c` in the guest. */
export const PROBES = { glibc: "/usr/local/bin/probe", musl: "/usr/local/bin/probe-musl" } as const;

/** Pushes an image with Debian, network clients and the probes to a registry, and returns its reference. */
export async function pushGuest(registry: Registry, authority: string): Promise<string> {
  const root = await guestRoot();
  const [glibc, musl] = await Promise.all([compiledProbe("gcc"), compiledProbe("musl-gcc", "-static")]);
  const own = tar([
    { path: PROBES.glibc.slice(1), mode: 0o755, content: glibc },
    { path: PROBES.musl.slice(1), mode: 0o755, content: musl },
    { path: "usr/local/share/ca.crt", content: authority },
  ]);
  const repository = "network/guest";
  const put = async (mediaType: string, content: Uint8Array): Promise<object> => {
    return { mediaType, digest: await registry.putBlob(repository, content), size: content.length };
  };
  const config = {
    architecture: "amd64",
    os: "linux",
    rootfs: { type: "layers", diff_ids: [digestOf(Bun.zstdDecompressSync(root)), digestOf(own)] },
  };
  const manifest = {
    schemaVersion: 2,
    mediaType: MANIFEST,
    config: await put(CONFIG, Buffer.from(JSON.stringify(config))),
    layers: [await put(`${LAYER}+zstd`, root), await put(LAYER, own)],
  };
  await registry.putManifest(repository, "1", MANIFEST, JSON.stringify(manifest));
  return `${registry.host}/${repository}:1`;
}

/** The archive of Debian. @throws Error when it was not built: the network namespace of the tests has no mirror */
async function guestRoot(): Promise<Uint8Array> {
  const archive = await rootPath();
  if (existsSync(archive)) return await Bun.file(archive).bytes();
  throw new Error(`${archive} is missing: bun tests/support/network/build-guest.ts`);
}

/** Builds the archive of Debian if it is missing, which needs a network and some minutes. */
export async function buildRoot(): Promise<void> {
  const archive = await rootPath();
  if (existsSync(archive)) return;
  process.stderr.write("building a Debian guest, once: this needs a network and some minutes\n");
  await mkdir(CACHE, { recursive: true });
  const argv = ["nice", "-n", "5", "bash", SCRIPT, await kernelPackage(), archive];
  await run({ argv, timeoutMs: ROOT_MS_MAX, stdoutBytesMax: LOG_BYTES_MAX });
}

async function rootPath(): Promise<string> {
  const hasher = new Bun.CryptoHasher("sha256");
  hasher.update(await Bun.file(SCRIPT).bytes()).update(basename(await kernelPackage()));
  return join(CACHE, `root-${hasher.digest("hex").slice(0, 16)}.tar.zst`);
}

/** The package that contains the guest's kernel. */
async function kernelPackage(): Promise<string> {
  const kernels = join(ROOT, "build/kernel");
  const kernel = (await readdir(kernels))
    .filter((name) => name.endsWith(".deb"))
    .sort()
    .at(-1);
  if (kernel === undefined) throw new Error(`${kernels} has no kernel: make assets`);
  return join(kernels, kernel);
}

/** The probe, built by a compiler of this machine. */
async function compiledProbe(compiler: string, ...flags: string[]): Promise<Uint8Array> {
  await using scratch = await scratchDirectory("/tmp", "probe-");
  const path = join(scratch.path, "probe");
  const argv = [compiler, ...flags, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, PROBE];
  await run({ argv, timeoutMs: COMPILE_MS });
  return await Bun.file(path).bytes();
}
