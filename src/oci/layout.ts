import { createHash } from "node:crypto";
import { constants } from "node:fs";
import { type FileHandle, lstat, mkdir, open, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { ImageDefaults } from "../domain/image-defaults.ts";
import {
  type Descriptor,
  DOCUMENT_BYTES_MAX,
  digestOf,
  type ImageManifest,
  parseConfig,
  parseManifest,
  selectManifest,
  unusable,
} from "./manifest.ts";

/** Tag of the image in every layout. */
export const LAYOUT_TAG = "image";

/** Bytes that are hashed in one turn of the event loop: little more than a millisecond even on an old processor. */
const CHUNK_BYTES = 524_288;
/** Length of the longest magic number below. */
const HEAD_BYTES = 6;

const MEDIA_TYPE = {
  manifest: "application/vnd.oci.image.manifest.v1+json",
  config: "application/vnd.oci.image.config.v1+json",
  plain: "application/vnd.oci.image.layer.v1.tar",
  gzip: "application/vnd.oci.image.layer.v1.tar+gzip",
} as const;

/** Image tools recognise compression by magic numbers, because the media type in an image may be wrong. */
const GZIP = [0x1f, 0x8b, 0x08];
/** zstd, xz and bzip2, which umoci cannot read. */
const UNREADABLE = [
  [0x28, 0xb5, 0x2f, 0xfd],
  [0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00],
  [0x42, 0x5a, 0x68],
];

/** An OCI layout that contains one image, tagged LAYOUT_TAG. */
export interface ImageLayout {
  readonly directory: string;
  /** digest of the config, whose `diff_ids` umoci uses to verify the unpacked layers */
  readonly configDigest: string;
  /** defaults of the image for commands */
  readonly defaults: ImageDefaults;
  /** number of layers, lowest first in the layout */
  readonly layersCount: number;
  /** whether umoci can read every layer */
  readonly isReadable: boolean;
}

/** A verified blob. */
interface Blob {
  readonly sizeBytes: number;
  /** its first bytes */
  readonly head: Buffer;
}

/**
 * Makes a layout from an image that skopeo copied to a directory (`dir:`), after verifying the manifest, the config and all
 * layers by their digests and sizes. The layout gets a new manifest with only the verified fields, so that no other tool
 * interprets the image's own manifest differently. The media type of a layer follows from its magic number.
 * @param copy directory without writers; its blobs are moved
 * @param digest of the manifest
 * @throws ApiError `validation_error`; the signal's reason
 */
export async function verifiedLayout(
  copy: string,
  digest: string,
  { directory, signal }: { readonly directory: string; readonly signal: AbortSignal },
): Promise<ImageLayout> {
  await requireDirectory(copy);
  const document = await readDocument(join(copy, "manifest.json"));
  if (digestOf(document) !== digest) throw unusable("the copied manifest is not the selected one");
  const manifest = parseManifest(document);
  await mkdir(blobsOf(directory), { recursive: true });
  const blobs = new Map<string, Blob>();
  for (const descriptor of [manifest.config, ...manifest.layers]) {
    const blob = blobs.get(descriptor.digest) ?? (await takeBlob(copy, directory, descriptor, signal));
    if (blob.sizeBytes !== descriptor.size) {
      throw unusable(`size mismatch: ${descriptor.digest} has ${blob.sizeBytes} bytes, not ${descriptor.size}`);
    }
    blobs.set(descriptor.digest, blob);
  }
  const defaults = parseConfig(await readDocument(blobPath(directory, manifest.config.digest)));
  const begins = ({ digest: of }: Descriptor, mark: readonly number[]): boolean =>
    mark.every((byte, index) => blobs.get(of)?.head[index] === byte);
  await writeLayout(directory, manifest, (layer) => (begins(layer, GZIP) ? MEDIA_TYPE.gzip : MEDIA_TYPE.plain));
  return {
    directory,
    configDigest: manifest.config.digest,
    defaults,
    layersCount: manifest.layers.length,
    isReadable: !manifest.layers.some((layer) => UNREADABLE.some((mark) => begins(layer, mark))),
  };
}

/**
 * Checks that a layout which skopeo made from a verified one contains the same image, with recompressed layers.
 * @throws ApiError `validation_error`
 */
export async function requireSameImage(repacked: string, { configDigest, layersCount }: ImageLayout): Promise<void> {
  await requireDirectory(repacked);
  const { digest } = selectManifest(await readDocument(join(repacked, "index.json")));
  const { config, layers } = parseManifest(await readDocument(blobPath(repacked, digest)));
  if (config.digest !== configDigest || layers.length !== layersCount) throw unusable("its repacked copy differs");
}

function blobsOf(layout: string): string {
  return join(layout, "blobs", "sha256");
}

function blobPath(layout: string, digest: string): string {
  return join(blobsOf(layout), encodedOf(digest));
}

/** The hexadecimal digits of a digest, which are the names of blobs. */
function encodedOf(digest: string): string {
  return digest.slice("sha256:".length);
}

/** Moves a blob to the layout and verifies its digest. */
async function takeBlob(copy: string, layout: string, { digest }: Descriptor, signal: AbortSignal): Promise<Blob> {
  const path = blobPath(layout, digest);
  await rename(join(copy, encodedOf(digest)), path).catch((error: NodeJS.ErrnoException) => {
    throw error.code === "ENOENT" ? unusable(`it lacks ${digest}`) : error;
  });
  await using file = await openFile(path);
  const hash = createHash("sha256");
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
  let head = Buffer.alloc(0);
  let sizeBytes = 0;
  for (;;) {
    signal.throwIfAborted();
    const { bytesRead } = await file.read(chunk, 0, CHUNK_BYTES, null);
    if (bytesRead === 0) break;
    if (sizeBytes === 0) head = Buffer.from(chunk.subarray(0, Math.min(bytesRead, HEAD_BYTES)));
    hash.update(chunk.subarray(0, bytesRead));
    sizeBytes += bytesRead;
  }
  if (`sha256:${hash.digest("hex")}` !== digest) throw unusable(`the content of ${digest} has another digest`);
  return { sizeBytes, head };
}

/** Writes the manifest and the other files that turn a directory of blobs into a layout. */
async function writeLayout(
  directory: string,
  { config, layers }: ImageManifest,
  mediaTypeOf: (layer: Descriptor) => string,
): Promise<void> {
  const document = Buffer.from(
    JSON.stringify({
      schemaVersion: 2,
      mediaType: MEDIA_TYPE.manifest,
      config: { mediaType: MEDIA_TYPE.config, digest: config.digest, size: config.size },
      layers: layers.map((layer) => ({ mediaType: mediaTypeOf(layer), digest: layer.digest, size: layer.size })),
    }),
  );
  const digest = digestOf(document);
  const annotations = { "org.opencontainers.image.ref.name": LAYOUT_TAG };
  const entry = { mediaType: MEDIA_TYPE.manifest, digest, size: document.length, annotations };
  await writeFile(blobPath(directory, digest), document);
  await writeFile(join(directory, "index.json"), JSON.stringify({ schemaVersion: 2, manifests: [entry] }));
  await writeFile(join(directory, "oci-layout"), JSON.stringify({ imageLayoutVersion: "1.0.0" }));
}

/** Refuses a symlink, which a compromised program may have left. */
async function requireDirectory(path: string): Promise<void> {
  if (!(await lstat(path)).isDirectory()) throw unusable("its copy is not a directory");
}

/** Opens a file that another program wrote. @throws ApiError when it is missing or not a regular file */
async function openFile(path: string): Promise<FileHandle> {
  const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants;
  const file = await open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK).catch((error: NodeJS.ErrnoException) => {
    throw ["ENOENT", "ELOOP", "ENXIO"].includes(error.code ?? "") ? unusable("a part of it is missing") : error;
  });
  if ((await file.stat()).isFile()) return file;
  await file.close();
  throw unusable("a part of it is not a file");
}

async function readDocument(path: string): Promise<Buffer> {
  await using file = await openFile(path);
  if ((await file.stat()).size > DOCUMENT_BYTES_MAX) throw unusable("its manifest or config is too long");
  return await file.readFile();
}
