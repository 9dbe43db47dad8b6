import { CWD_LABEL, type ImageDefaults } from "../../domain/image-defaults.ts";
import type { ByteString } from "../../domain/tree/guest-path.ts";
import type { LayerEntry, LayerIndex } from "../index/layer-index.ts";
import { type Cancellation, Pacer } from "../pacer.ts";
import { LinkTable } from "../tree/archive-links.ts";
import type { ImageEntry } from "../tree/directory-merge.ts";
import type { LayerFiles, OpenLayers } from "../tree/open-layers.ts";
import { entryPieces, Gatherer } from "./archive.ts";
import { encodeTarHeader, paddingOf, TarType, tarEnd } from "./tar-format.ts";

/** Computing the digest of a layer takes minutes. After this many `bytes`, the client gets a header as a sign of life. */
const KEEPALIVE_BYTES = 67_108_864;
const BLOBS_DIRECTORY = "blobs/sha256/";
const WHITEOUT_PREFIX = ".wh.";
const OPAQUE_NAME = ".wh..wh..opq";
const LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar";
const CONFIG_TYPE = "application/vnd.oci.image.config.v1+json";
export const MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json";

type Chunks = AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;

/** An image to be written to an archive. */
export interface ArchivedImage {
  /** lowest first */
  readonly layers: readonly LayerFiles[];
  /** its name in the archive */
  readonly name: string | null;
  /** ISO 8601 */
  readonly createdAt: string;
  readonly defaults: ImageDefaults;
}

/** A blob of an archive. */
export interface Descriptor {
  readonly mediaType: string;
  readonly digest: string;
  readonly size: number;
}

/**
 * An OCI layout in a tar archive, with an uncompressed layer for each layer of the image. An image always gives the same
 * bytes. Each layer is read twice, for its digest and for its content, so that it is stored neither in memory nor on disk.
 * While a digest is computed, the header of the blobs' directory is sent repeatedly, so that clients do not time out.
 * @throws the error of `cancellation`
 */
export async function* ociArchiveChunks(
  image: ArchivedImage,
  cancellation: Cancellation | null,
  open: OpenLayers,
): Chunks {
  const layers: Descriptor[] = [];
  const written = new Set<string>();
  yield directoryHeader("blobs/");
  yield directoryHeader(BLOBS_DIRECTORY);
  for (const files of image.layers) {
    const layer = yield* describeChunks(layerChunks(files, cancellation, open));
    layers.push(layer);
    if (written.has(layer.digest)) continue;
    written.add(layer.digest);
    yield fileHeader(blobName(layer), layer.size);
    yield* layerChunks(files, cancellation, open);
    yield Buffer.alloc(paddingOf(layer.size));
  }
  const { config, manifest, configBlob, manifestBlob } = documentsOf(image, layers);
  yield* file(blobName(configBlob), config);
  yield* file(blobName(manifestBlob), manifest);
  const annotations = image.name === null ? {} : { annotations: { "org.opencontainers.image.ref.name": image.name } };
  const platform = { architecture: "amd64", os: "linux" };
  const index = { schemaVersion: 2, manifests: [{ ...manifestBlob, platform, ...annotations }] };
  yield* file("index.json", Buffer.from(JSON.stringify(index)));
  yield* file("oci-layout", Buffer.from('{"imageLayoutVersion":"1.0.0"}'));
  yield tarEnd() as Buffer<ArrayBuffer>;
}

/** The config and the manifest of an image, with their descriptors. */
function documentsOf(image: Pick<ArchivedImage, "createdAt" | "defaults">, layers: readonly Descriptor[]) {
  const config = Buffer.from(JSON.stringify(configOf(image, layers)));
  const configBlob = descriptorOf(CONFIG_TYPE, config);
  const manifest = Buffer.from(
    JSON.stringify({ schemaVersion: 2, mediaType: MANIFEST_TYPE, config: configBlob, layers }),
  );
  return { config, manifest, configBlob, manifestBlob: descriptorOf(MANIFEST_TYPE, manifest) };
}

/** The descriptor of the manifest that an archive of the image has. @param layers those of `describeLayer`, lowest first */
export function describeManifest(
  image: Pick<ArchivedImage, "createdAt" | "defaults">,
  layers: readonly Descriptor[],
): Descriptor {
  return documentsOf(image, layers).manifestBlob;
}

/** The descriptor of a layer in archives. Reads all of its content. @throws the error of `cancellation` */
export async function describeLayer(
  files: LayerFiles,
  cancellation: Cancellation | null,
  open: OpenLayers,
): Promise<Descriptor> {
  const chunks = describeChunks(layerChunks(files, cancellation, open));
  for (;;) {
    const next = await chunks.next();
    if (next.done === true) return next.value;
  }
}

/**
 * One layer in the form of the OCI image specification: added and changed entries, and whiteouts for removed ones. A file
 * whose own name begins like a whiteout is omitted, because extracting it would remove another file.
 * @throws the error of `cancellation`
 */
async function* layerChunks(files: LayerFiles, cancellation: Cancellation | null, open: OpenLayers): Chunks {
  using lease = open.acquire(files);
  const gatherer = new Gatherer();
  using links = new LinkTable(open.linkBudget);
  const pacer = new Pacer(cancellation);
  for await (const { path, entry } of walk(lease.index, pacer)) {
    if (entry.type === "w") {
      yield* gatherer.add(fileHeader(whiteoutPath(path), 0));
      continue;
    }
    const located = { layer: files, entry: entry as ImageEntry };
    const archivePath = (path === "" ? "./" : path) as ByteString;
    for await (const piece of entryPieces({ lease, located, path: archivePath }, links, pacer))
      yield* gatherer.add(piece);
    const isOpaque = entry.type === "d" && entry.opaque;
    if (isOpaque) yield* gatherer.add(fileHeader(path === "" ? OPAQUE_NAME : `${path}/${OPAQUE_NAME}`, 0));
  }
  yield* gatherer.add(tarEnd());
  yield* gatherer.rest();
}

/** Entries that are read at a time in the upper levels of a walk; deeper levels read one at a time. */
const PAGE_COUNT = 64;
const PAGED_LEVELS_COUNT = 16;

/** A directory that the walk is in. */
interface WalkLevel {
  readonly path: string;
  readonly directory: LayerEntry;
  page: readonly LayerEntry[];
  /** position in the page of the next entry */
  next: number;
}

/** Every entry of a layer, a directory before its contents. */
async function* walk(
  index: LayerIndex,
  pacer: Pacer,
): AsyncGenerator<{ readonly path: string; readonly entry: LayerEntry }, void, undefined> {
  const root = index.root();
  yield { path: "", entry: root };
  const stack: WalkLevel[] = [{ path: "", directory: root, page: [], next: 0 }];
  for (let top = stack.at(-1); top !== undefined; top = stack.at(-1)) {
    if (pacer.shouldYield()) await pacer.yield();
    if (top.next === top.page.length) {
      const count = stack.length > PAGED_LEVELS_COUNT ? 1 : PAGE_COUNT;
      top.page = index.children(top.directory, top.page.at(-1)?.name ?? null, count);
      top.next = 0;
    }
    const entry = top.page[top.next++];
    if (entry === undefined) {
      stack.pop();
      continue;
    }
    if (entry.name.startsWith(WHITEOUT_PREFIX)) continue;
    const path = top.path === "" ? entry.name : `${top.path}/${entry.name}`;
    yield { path, entry };
    if (entry.type === "d") stack.push({ path, directory: entry, page: [], next: 0 });
  }
}

function whiteoutPath(path: string): string {
  const cut = path.lastIndexOf("/") + 1;
  return `${path.slice(0, cut)}${WHITEOUT_PREFIX}${path.slice(cut)}`;
}

/** The descriptor of the chunks together. Yields a header after every KEEPALIVE_BYTES. */
async function* describeChunks(chunks: Chunks): AsyncGenerator<Uint8Array<ArrayBuffer>, Descriptor, undefined> {
  const hash = new Bun.CryptoHasher("sha256");
  let size = 0;
  let keepaliveAt = 0;
  for await (const chunk of chunks) {
    hash.update(chunk);
    size += chunk.byteLength;
    if (size - keepaliveAt < KEEPALIVE_BYTES) continue;
    keepaliveAt = size;
    yield directoryHeader(BLOBS_DIRECTORY);
  }
  return { mediaType: LAYER_TYPE, digest: `sha256:${hash.digest("hex")}`, size };
}

/** The part of the config that tools for containers use. */
function settingsOf({ variables, cwd }: ImageDefaults): Record<string, unknown> {
  const Env = Object.entries(variables).map(([name, value]) => `${name}=${value}`);
  return {
    ...(Env.length === 0 ? {} : { Env }),
    ...(cwd === null ? {} : { WorkingDir: cwd, Labels: { [CWD_LABEL]: cwd } }),
  };
}

function configOf(
  { createdAt, defaults }: Pick<ArchivedImage, "createdAt" | "defaults">,
  layers: readonly Descriptor[],
) {
  return {
    created: createdAt,
    architecture: "amd64",
    os: "linux",
    config: settingsOf(defaults),
    rootfs: { type: "layers", diff_ids: layers.map(({ digest }) => digest) },
    history: layers.map(() => ({ created: createdAt, created_by: "coppice" })),
  };
}

function descriptorOf(mediaType: string, content: Buffer): Descriptor {
  const digest = new Bun.CryptoHasher("sha256").update(content).digest("hex");
  return { mediaType, digest: `sha256:${digest}`, size: content.byteLength };
}

function blobName({ digest }: Descriptor): string {
  return `blobs/${digest.replace(":", "/")}`;
}

function* file(name: string, content: Buffer): Generator<Buffer<ArrayBuffer>, void, undefined> {
  yield fileHeader(name, content.byteLength);
  yield Buffer.from(content);
  yield Buffer.alloc(paddingOf(content.byteLength));
}

function fileHeader(path: string, size: number): Buffer<ArrayBuffer> {
  return headerOf(path, { type: TarType.file, mode: 0o644, size });
}

function directoryHeader(path: string): Buffer<ArrayBuffer> {
  return headerOf(path, { type: TarType.directory, mode: 0o755, size: 0 });
}

function headerOf(
  path: string,
  kind: { readonly type: TarType; readonly mode: number; readonly size: number },
): Buffer<ArrayBuffer> {
  const owner = { uid: 0, gid: 0, mtimeSeconds: 0, mtimeNanoseconds: 0, rdevMajor: 0, rdevMinor: 0 };
  const names = { path: path as ByteString, target: "" as ByteString };
  return encodeTarHeader({
    ...names,
    ...owner,
    ...kind,
    records: [],
  }) as Buffer<ArrayBuffer>;
}
