import { createHash } from "node:crypto";
import { constants } from "node:fs";
import { type FileHandle, lstat, mkdir, open, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import {
  checkPlatform,
  type Descriptor,
  DOCUMENT_BYTES_MAX,
  digestOf,
  type ImageManifest,
  parseManifest,
  selectManifest,
  unusable,
} from "./manifest.ts";

/** Name of the image in every layout. */
export const LAYOUT_TAG = "image";

/** What is hashed in one turn of the event loop, in which even an old processor takes little more than a millisecond. */
const CHUNK_BYTES = 524_288;
/** As long as the longest of the marks below. */
const HEAD_BYTES = 6;

const MEDIA_TYPE = {
  manifest: "application/vnd.oci.image.manifest.v1+json",
  config: "application/vnd.oci.image.config.v1+json",
  plain: "application/vnd.oci.image.layer.v1.tar",
  gzip: "application/vnd.oci.image.layer.v1.tar+gzip",
} as const;

/** Image tools tell forms of archives apart by how they begin, since the type that an image gives may be any. */
const GZIP = [0x1f, 0x8b, 0x08];
/** zstd, xz and bzip2, none of which umoci reads. */
const UNREADABLE = [
  [0x28, 0xb5, 0x2f, 0xfd],
  [0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00],
  [0x42, 0x5a, 0x68],
];

/** An OCI layout that holds one image, under LAYOUT_TAG. */
export interface ImageLayout {
  readonly directory: string;
  /** of the config, by whose `diff_ids` umoci checks what it unpacks of every layer */
  readonly configDigest: string;
  /** lowest first; their order in the layout, too */
  readonly layersCount: number;
  /** umoci can read every layer */
  readonly isReadable: boolean;
}

/** What a blob turned out to be. */
interface Blob {
  readonly sizeBytes: number;
  /** its first bytes */
  readonly head: Buffer;
}

/**
 * Makes a layout of an image that skopeo copied into a directory (`dir:`), once its manifest, its config and all of its
 * layers turned out to be what their digests and sizes say. The manifest in the layout is a new one, so that nobody else
 * reads what a stranger wrote in another way than was checked here; the type of a layer is what its bytes begin like.
 * @param copy no program may write to it any more; its blobs are moved
 * @param digest of the manifest
 * @throws ApiError `validation_error`, or the signal's reason
 */
export async function verifiedLayout(
  copy: string,
  digest: string,
  { directory, signal }: { readonly directory: string; readonly signal: AbortSignal },
): Promise<ImageLayout> {
  await requireDirectory(copy);
  const document = await readDocument(join(copy, "manifest.json"));
  if (digestOf(document) !== digest) throw unusable("what was copied is not the manifest that was chosen");
  const manifest = parseManifest(document);
  await mkdir(blobsOf(directory), { recursive: true });
  const blobs = new Map<string, Blob>();
  for (const descriptor of [manifest.config, ...manifest.layers]) {
    const blob = blobs.get(descriptor.digest) ?? (await takeBlob(copy, directory, descriptor, signal));
    if (blob.sizeBytes !== descriptor.size) {
      throw unusable(`size mismatch: ${descriptor.digest} has ${blob.sizeBytes} bytes, and not ${descriptor.size}`);
    }
    blobs.set(descriptor.digest, blob);
  }
  checkPlatform(await readDocument(blobPath(directory, manifest.config.digest)));
  const begins = ({ digest: of }: Descriptor, mark: readonly number[]): boolean =>
    mark.every((byte, index) => blobs.get(of)?.head[index] === byte);
  await writeLayout(directory, manifest, (layer) => (begins(layer, GZIP) ? MEDIA_TYPE.gzip : MEDIA_TYPE.plain));
  return {
    directory,
    configDigest: manifest.config.digest,
    layersCount: manifest.layers.length,
    isReadable: !manifest.layers.some((layer) => UNREADABLE.some((mark) => begins(layer, mark))),
  };
}

/**
 * Requires that a layout which a program made of a verified one has the same image, in other forms of its layers.
 * @throws ApiError `validation_error`
 */
export async function requireSameImage(made: string, { configDigest, layersCount }: ImageLayout): Promise<void> {
  await requireDirectory(made);
  const { digest } = selectManifest(await readDocument(join(made, "index.json")));
  const { config, layers } = parseManifest(await readDocument(blobPath(made, digest)));
  if (config.digest !== configDigest || layers.length !== layersCount) throw unusable("another one was made of it");
}

function blobsOf(layout: string): string {
  return join(layout, "blobs", "sha256");
}

function blobPath(layout: string, digest: string): string {
  return join(blobsOf(layout), encodedOf(digest));
}

/** The hexadecimal digits, by which `dir:` and layouts name blobs. */
function encodedOf(digest: string): string {
  return digest.slice("sha256:".length);
}

/** Moves a blob into the layout, and requires that its content is what its digest says. */
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
  if (`sha256:${hash.digest("hex")}` !== digest) throw unusable(`it has another content under ${digest}`);
  return { sizeBytes, head };
}

/** Writes what makes a directory with an image's blobs a layout. */
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

/** Wherever a program that was taken over may point, nobody follows. */
async function requireDirectory(path: string): Promise<void> {
  if (!(await lstat(path)).isDirectory()) throw unusable("its copy is no directory");
}

/** Opens what a program wrote, which may be no file at all. */
async function openFile(path: string): Promise<FileHandle> {
  const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants;
  const file = await open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK).catch((error: NodeJS.ErrnoException) => {
    throw ["ENOENT", "ELOOP", "ENXIO"].includes(error.code ?? "") ? unusable("a part of it is missing") : error;
  });
  if ((await file.stat()).isFile()) return file;
  await file.close();
  throw unusable("a part of it is no file");
}

async function readDocument(path: string): Promise<Buffer> {
  await using file = await openFile(path);
  if ((await file.stat()).size > DOCUMENT_BYTES_MAX) throw unusable("its manifest or config is too long");
  return await file.readFile();
}
