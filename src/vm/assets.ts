import { createHash } from "node:crypto";
import { createWriteStream } from "node:fs";
import { chmod, mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { Readable, Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { createZstdDecompress } from "node:zlib";
import { forgetMappings } from "../system/memory.ts";
import { scratchDirectory, syncPath } from "../system/scratch.ts";

/** What a machine is started with, as paths on the host. */
export interface VmAssets {
  readonly kernel: string;
  readonly initramfs: string;
  readonly launcher: string;
  /** what is preloaded into a clone's QEMU */
  readonly memory: string;
  /** SHA-256 over all of them, in hexadecimal */
  readonly hash: string;
}

/** The files by name, with their permissions: all but the launcher are read by VMs' own uids. */
export const ASSET_MODES = { vmlinux: 0o444, "initramfs.cpio": 0o444, launch: 0o555, "memory.so": 0o444 } as const;
export type AssetName = keyof typeof ASSET_MODES;

/** List of the files inside the executable, made by the build. */
export interface AssetManifest {
  readonly hash: string;
  readonly files: Readonly<Record<AssetName, { readonly sha256: string; readonly sizeBytes: number }>>;
}

/** Directory in the executable that the build fills with `manifest.json` and `<name>.zst`. */
export const EMBEDDED_DIRECTORY = "embedded-assets";

/** The manifest inside the executable; null when running from source. */
export async function embeddedManifest(): Promise<AssetManifest | null> {
  if (!Bun.isStandaloneExecutable) return null;
  return (await Bun.file(embeddedPath("manifest.json")).json()) as AssetManifest;
}

/**
 * Finds the assets. An executable unpacks its own to `assets/<hash>` of the data directory,
 * at once or not at all, and checks every byte then; later starts look only at the sizes. From source the files of
 * the last `make assets` are used.
 * @throws Error when they are missing or damaged
 */
export async function resolveAssets(dataDirectory: string): Promise<VmAssets> {
  const manifest = await embeddedManifest();
  if (manifest === null) return await assetsOfSource();
  const parent = join(dataDirectory, "assets");
  const directory = join(parent, manifest.hash);
  await mkdir(parent, { recursive: true, mode: 0o700 });
  if (!(await isIntact(directory, manifest))) {
    await unpack(manifest, parent, directory);
    forgetMappings(process.execPath);
  }
  for (const name of await readdir(parent)) {
    // Of an earlier version, or of an unpacking that was interrupted.
    if (name !== manifest.hash) await rm(join(parent, name), { recursive: true, force: true });
  }
  return assetsIn(directory, manifest.hash);
}

/** Manifest of the files in a directory, for the build and for running from source. */
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
  return { kernel, initramfs, launcher: path("launch"), memory: path("memory.so"), hash };
}

function embeddedPath(name: string): string {
  return join(import.meta.dir, EMBEDDED_DIRECTORY, name);
}

async function isIntact(directory: string, manifest: AssetManifest): Promise<boolean> {
  for (const name of assetNames()) {
    const found = await stat(join(directory, name)).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT" || error.code === "ENOTDIR") return null;
      throw error;
    });
    if (found?.size !== manifest.files[name].sizeBytes) return false;
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
      throw new Error(`the executable is damaged: ${name} has another SHA-256`);
    await chmod(path, ASSET_MODES[name]);
    await syncPath(path);
  }
  await rm(directory, { recursive: true, force: true });
  await syncPath(staged);
  await rename(staged, directory);
  await syncPath(parent);
}

/** Streams, so that the size of a kernel never shows in the daemon's memory. Returns the SHA-256 of the result. */
async function decompress(from: string, to: string): Promise<string> {
  const hash = createHash("sha256");
  const hashing = new Transform({
    transform(chunk: Uint8Array, _encoding, done) {
      hash.update(chunk);
      done(null, chunk);
    },
  });
  const source = Readable.fromWeb(Bun.file(from).stream() as Parameters<typeof Readable.fromWeb>[0]);
  await pipeline(source, createZstdDecompress(), hashing, createWriteStream(to, { mode: 0o600 }));
  return hash.digest("hex");
}
