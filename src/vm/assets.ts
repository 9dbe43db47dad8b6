import { createHash } from "node:crypto";
import { createWriteStream } from "node:fs";
import { chmod, mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { Readable, Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { pageOutFile } from "../system/memory.ts";
import { scratchDirectory, syncPath } from "../system/scratch.ts";

/** Host paths of the files that a machine is started with. */
export interface VmAssets {
  readonly kernel: string;
  readonly initramfs: string;
  readonly launcher: string;
  /** library that is preloaded into the QEMU of a clone */
  readonly memory: string;
  /** program that copies the memory of a running machine */
  readonly memoryCopier: string;
  /** SHA-256 over all files, in hexadecimal */
  readonly hash: string;
}

/** The files and their permissions. VMMs read all of them but the launcher under uids of their own. */
const ASSET_MODES = {
  vmlinux: 0o444,
  "initramfs.cpio": 0o444,
  launch: 0o555,
  "memory.so": 0o444,
  "copy-memory": 0o555,
} as const;
export type AssetName = keyof typeof ASSET_MODES;

/** The list of the files inside the executable, written by the build. */
export interface AssetManifest {
  readonly hash: string;
  readonly files: Readonly<Record<AssetName, { readonly sha256: string; readonly sizeBytes: number }>>;
}

/** Directory inside the executable that the build fills with `manifest.json` and `<name>.zst`. */
export const EMBEDDED_DIRECTORY = "embedded-assets";

/** The manifest inside the executable; null when the program runs from source. */
export async function embeddedManifest(): Promise<AssetManifest | null> {
  if (!Bun.isStandaloneExecutable) return null;
  return (await Bun.file(embeddedPath("manifest.json")).json()) as AssetManifest;
}

/**
 * Finds the assets. The executable unpacks its own to `assets/<hash>` in the data directory, atomically, and verifies
 * every hash while it unpacks; later starts compare only the sizes. A program that runs from source uses the files of
 * the last `make assets`.
 * @throws Error when a file is missing or damaged
 */
export async function resolveAssets(dataDirectory: string): Promise<VmAssets> {
  const manifest = await embeddedManifest();
  if (manifest === null) return await assetsOfSource();
  const parent = join(dataDirectory, "assets");
  const directory = join(parent, manifest.hash);
  await mkdir(parent, { recursive: true, mode: 0o700 });
  if (!(await isIntact(directory, manifest))) {
    await unpack(manifest, parent, directory);
    pageOutFile(process.execPath);
  }
  for (const name of await readdir(parent)) {
    // Left by an earlier version, or by an interrupted unpacking.
    if (name !== manifest.hash) await rm(join(parent, name), { recursive: true, force: true });
  }
  return assetsIn(directory, manifest.hash);
}

/** The same, found with the first call, and again after a failure. */
export function assetsOf(dataDirectory: string): () => Promise<VmAssets> {
  let assets: Promise<VmAssets> | null = null;
  return () => {
    assets ??= resolveAssets(dataDirectory).catch((error: unknown) => {
      assets = null;
      throw error;
    });
    return assets;
  };
}

/** Manifest of the files in a directory; the build and a run from source make one. */
export async function manifestOf(directory: string): Promise<AssetManifest> {
  const all = createHash("sha256");
  const entries: [string, { sha256: string; sizeBytes: number }][] = [];
  for (const name of assetNames()) {
    const file = Bun.file(join(directory, name));
    if (!(await file.exists())) throw new Error(`${join(directory, name)} is missing; make assets builds it`);
    const hash = createHash("sha256");
    for await (const chunk of file.stream()) hash.update(chunk);
    const sha256 = hash.digest("hex");
    all.update(`${name} ${sha256}\n`);
    entries.push([name, { sha256, sizeBytes: file.size }]);
  }
  return { hash: all.digest("hex"), files: Object.fromEntries(entries) as AssetManifest["files"] };
}

export function assetNames(): AssetName[] {
  return Object.keys(ASSET_MODES) as AssetName[];
}

async function assetsOfSource(): Promise<VmAssets> {
  const directory = join(import.meta.dir, "../../build/assets");
  return assetsIn(directory, (await manifestOf(directory)).hash);
}

function assetsIn(directory: string, hash: string): VmAssets {
  const path = (name: AssetName): string => join(directory, name);
  const [kernel, initramfs] = [path("vmlinux"), path("initramfs.cpio")];
  const [launcher, memory, memoryCopier] = [path("launch"), path("memory.so"), path("copy-memory")];
  return { kernel, initramfs, launcher, memory, memoryCopier, hash };
}

function embeddedPath(name: string): string {
  return join(import.meta.dir, EMBEDDED_DIRECTORY, name);
}

async function isIntact(directory: string, manifest: AssetManifest): Promise<boolean> {
  for (const name of assetNames()) {
    const stats = await stat(join(directory, name)).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT" || error.code === "ENOTDIR") return null;
      throw error;
    });
    if (stats?.size !== manifest.files[name].sizeBytes) return false;
  }
  return true;
}

async function unpack(manifest: AssetManifest, parent: string, directory: string): Promise<void> {
  await using scratch = await scratchDirectory(parent, "unpacking-");
  const staged = join(scratch.path, "assets");
  await mkdir(staged, { mode: 0o755 });
  for (const name of assetNames()) {
    const path = join(staged, name);
    const sha256 = await decompress(embeddedPath(`${name}.zst`), path);
    if (sha256 !== manifest.files[name].sha256)
      throw new Error(`the executable is damaged: ${name} has the wrong SHA-256`);
    await chmod(path, ASSET_MODES[name]);
    await syncPath(path);
  }
  await rm(directory, { recursive: true, force: true });
  await syncPath(staged);
  await rename(staged, directory);
  await syncPath(parent);
}

/** Decompresses as a stream, so that the daemon never holds a whole kernel in memory. Returns the result's SHA-256. */
async function decompress(from: string, to: string): Promise<string> {
  const hash = createHash("sha256");
  const hashing = new Transform({
    transform(chunk: Uint8Array, _encoding, done) {
      hash.update(chunk);
      done(null, chunk);
    },
  });
  // Loaded only here: few starts unpack the assets.
  const { createZstdDecompress } = await import("node:zlib");
  const source = Readable.fromWeb(Bun.file(from).stream() as unknown as Parameters<typeof Readable.fromWeb>[0]);
  await pipeline(source, createZstdDecompress(), hashing, createWriteStream(to, { mode: 0o600 }));
  return hash.digest("hex");
}
