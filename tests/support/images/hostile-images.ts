import { gzipSync } from "node:zlib";
import { digestOf } from "./registry.ts";
import { type TarEntry, tar } from "./tar.ts";

const MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE = "application/vnd.oci.image.index.v1+json";
const CONFIG_TYPE = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip";

const MIB = 1_048_576;
/** Zeros that one compressed member expands to. */
const MEMBER_BYTES = 16 * MIB;

/** One layer, as bytes of any kind; its description in the image is true, except for the fields here. */
export interface RawLayer {
  /** the stored bytes; null when the blob is missing */
  readonly blob: Uint8Array | null;
  /** of the archive compressed in it */
  readonly diffId: string;
  readonly digest?: string;
  /** in `bytes` */
  readonly size?: number;
  readonly mediaType?: string;
  readonly urls?: readonly string[];
}

/** An image by its parts, which need not fit each other. */
export interface RawImage {
  readonly manifest: { readonly type: string; readonly bytes: Buffer };
  /** by digest */
  readonly blobs: ReadonlyMap<string, Uint8Array>;
}

export interface RawImageOptions {
  readonly config?: Buffer;
  readonly configMediaType?: string;
  readonly manifestType?: string;
  /** fields that replace those of the manifest */
  readonly manifest?: Readonly<Record<string, unknown>>;
}

export function rawImage(layers: readonly RawLayer[], options: RawImageOptions = {}): RawImage {
  const blobs = new Map<string, Uint8Array>();
  const rootfs = { type: "layers", diff_ids: layers.map(({ diffId }) => diffId) };
  const config = options.config ?? Buffer.from(JSON.stringify({ architecture: "amd64", os: "linux", rootfs }));
  blobs.set(digestOf(config), config);
  const descriptors = layers.map((layer) => {
    const digest = layer.digest ?? digestOf(layer.blob ?? Buffer.alloc(0));
    if (layer.blob !== null) blobs.set(digest, layer.blob);
    const size = layer.size ?? layer.blob?.length ?? 1;
    return { mediaType: layer.mediaType ?? LAYER_TYPE, digest, size, ...(layer.urls ? { urls: layer.urls } : {}) };
  });
  const type = options.manifestType ?? MANIFEST_TYPE;
  const bytes = Buffer.from(
    JSON.stringify({
      schemaVersion: 2,
      mediaType: type,
      config: { mediaType: options.configMediaType ?? CONFIG_TYPE, digest: digestOf(config), size: config.length },
      layers: descriptors,
      ...options.manifest,
    }),
  );
  return { manifest: { type, bytes }, blobs };
}

/** A layer of an archive of any form. */
export function layerOf(archive: Uint8Array, more: Partial<RawLayer> = {}): RawLayer {
  return { blob: gzipSync(archive, { level: 1 }), diffId: digestOf(archive), ...more };
}

export function layer(...entries: readonly TarEntry[]): RawLayer {
  return layerOf(tar(entries));
}

/** Files of zeros that need a thousandth of their size until they are unpacked. The archive has no end. */
export function zeros(name: string, files: number, fileBytes: number): RawLayer {
  const member = gzipSync(Buffer.alloc(MEMBER_BYTES), { level: 9 });
  const content = Array<Buffer>(fileBytes / MEMBER_BYTES).fill(member);
  const parts = Array.from({ length: files }, (_, index) => {
    const header = tar([{ path: `${name}-${index}`, claimedBytes: fileBytes }]).subarray(0, -2 * 512);
    return [gzipSync(header), ...content];
  });
  return { blob: Buffer.concat(parts.flat()), diffId: `sha256:${"0".repeat(64)}` };
}

/** Targets of an index, by their digest. */
export interface RawEntry {
  readonly type: string;
  readonly bytes: Buffer;
  /** of the platform; omitted from the index by default */
  readonly variant?: string;
}

/** An index that points at documents by digest. */
export function indexOf(...entries: readonly RawEntry[]): RawImage["manifest"] {
  const manifests = entries.map(({ type, bytes, variant }) => ({
    mediaType: type,
    digest: digestOf(bytes),
    size: bytes.length,
    platform: { architecture: "amd64", os: "linux", ...(variant === undefined ? {} : { variant }) },
  }));
  const text = JSON.stringify({ schemaVersion: 2, mediaType: INDEX_TYPE, manifests });
  return { type: INDEX_TYPE, bytes: Buffer.from(text) };
}

/** Files of an OCI layout, for an archive of it. */
export function layoutFiles({ manifest, blobs }: RawImage): TarEntry[] {
  const entry = { mediaType: manifest.type, digest: digestOf(manifest.bytes), size: manifest.bytes.length };
  const blobFile = (digest: string, content: Uint8Array): TarEntry => ({
    path: `blobs/${digest.replace(":", "/")}`,
    content,
  });
  return [
    { path: "oci-layout", content: JSON.stringify({ imageLayoutVersion: "1.0.0" }) },
    { path: "index.json", content: JSON.stringify({ schemaVersion: 2, manifests: [entry] }) },
    blobFile(digestOf(manifest.bytes), manifest.bytes),
    ...[...blobs].map(([digest, content]) => blobFile(digest, content)),
  ];
}

/** A manifest or index. */
export interface RawDocument {
  readonly type: string;
  readonly bytes: Uint8Array;
  /** in the registry's header; default is its own */
  readonly claimedDigest?: string;
}

/** A registry on the loopback with arbitrary content. */
export class RawRegistry implements Disposable {
  readonly #documents = new Map<string, RawDocument>();
  readonly #blobs = new Map<string, Uint8Array | (() => Response)>();
  readonly #server: Bun.Server<undefined>;
  /** paths of all requests */
  readonly requests: string[] = [];

  constructor() {
    this.#server = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: (request) => this.#answer(request) });
  }

  get host(): string {
    return `127.0.0.1:${this.#server.port}`;
  }

  /** Adds an image, and returns its reference. */
  add(name: string, image: RawImage): string {
    this.addDocument(name, "1", image.manifest);
    for (const [digest, blob] of image.blobs) this.#blobs.set(digest, blob);
    return `${this.host}/${name}:1`;
  }

  /** A manifest or index, by a tag and by its digest. */
  addDocument(name: string, tag: string, document: RawDocument): void {
    for (const reference of [tag, digestOf(document.bytes)]) {
      this.#documents.set(`/v2/${name}/manifests/${reference}`, document);
    }
  }

  /** Sets the answer to a request of a manifest. */
  setDocument(name: string, reference: string, document: RawDocument): void {
    this.#documents.set(`/v2/${name}/manifests/${reference}`, document);
  }

  /** Sets the answer to a request of a blob. */
  setBlob(digest: string, answer: Uint8Array | (() => Response)): void {
    this.#blobs.set(digest, answer);
  }

  [Symbol.dispose](): void {
    void this.#server.stop(true);
  }

  #answer(request: Request): Response {
    const { pathname } = new URL(request.url);
    this.requests.push(pathname);
    if (pathname === "/v2/") return new Response("{}");
    const document = this.#documents.get(pathname);
    if (document !== undefined) {
      const digest = document.claimedDigest ?? digestOf(document.bytes);
      const headers = { "content-type": document.type, "docker-content-digest": digest };
      return new Response(document.bytes as Uint8Array<ArrayBuffer>, { headers });
    }
    const blob = this.#blobs.get(/\/blobs\/(.*)$/.exec(pathname)?.[1] ?? "");
    if (typeof blob === "function") return blob();
    if (blob !== undefined) return new Response(blob as Uint8Array<ArrayBuffer>);
    return Response.json({ errors: [{ code: "MANIFEST_UNKNOWN", message: "unknown" }] }, { status: 404 });
  }
}
