import { createHash } from "node:crypto";
import { type Static, type TSchema, Type } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";
import { ApiError } from "../domain/errors.ts";
import type { ImageDefaults } from "../domain/image-defaults.ts";
import { defaultsOf } from "./image-config.ts";
import { reasonOf } from "./tool-failure.ts";

/** Limit of registries and image tools for a manifest, and of image tools for a config, in `bytes`. */
export const DOCUMENT_BYTES_MAX = 4_194_304;
/** More layers than real images have. Each layer costs a look-up. */
export const IMAGE_LAYERS_COUNT_MAX = 4096;

/**
 * Limit of values in a document; an image with IMAGE_LAYERS_COUNT_MAX layers needs a third of it. Parsing blocks the event
 * loop, and more values would block it too long.
 */
const DOCUMENT_VALUES_COUNT_MAX = 49_152;
/** Far more than the number of existing platforms. */
const INDEX_ENTRIES_COUNT_MAX = 4096;
const CHARACTER = { quote: 0x22, comma: 0x2c, bracket: 0x5b, backslash: 0x5c, brace: 0x7b } as const;

const Digest = Type.String({ pattern: "^sha256:[0-9a-f]{64}$" });

/** Refers to a blob by its digest; `size` is in `bytes`. */
const Descriptor = Type.Object({
  mediaType: Type.String(),
  digest: Digest,
  size: Type.Integer({ minimum: 0 }),
  urls: Type.Optional(Type.Unknown()),
});
export type Descriptor = Static<typeof Descriptor>;

const ImageManifest = Type.Object({
  schemaVersion: Type.Literal(2),
  config: Descriptor,
  /** lowest first */
  layers: Type.Array(Descriptor),
});
export type ImageManifest = Static<typeof ImageManifest>;

const Platform = Type.Object({ os: Type.String(), architecture: Type.String(), variant: Type.Optional(Type.String()) });
const IndexEntry = Type.Object({ digest: Digest, platform: Type.Optional(Platform) });
type IndexEntry = Static<typeof IndexEntry>;

const IndexDocument = Type.Object({
  schemaVersion: Type.Literal(2),
  manifests: Type.Array(IndexEntry, { maxItems: INDEX_ENTRIES_COUNT_MAX }),
});

const ImageConfig = Type.Object({
  os: Type.Optional(Type.String()),
  architecture: Type.Optional(Type.String()),
  /** what tools for containers use; it is read only where it is well-formed */
  config: Type.Optional(Type.Unknown()),
});

const OS = "linux";
const ARCHITECTURE = "amd64";
/** Variants, best first; higher ones need newer processors. Image tools treat an empty variant like an absent one. */
const VARIANTS = ["", "v1", "v2", "v3"];
const PLATFORMS_SHOWN_MAX = 20;

const CONFIG_TYPES = ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYER_TYPES = [
  /^application\/vnd\.oci\.image\.layer\.(?:nondistributable\.)?v1\.tar(?:\+gzip|\+zstd)?$/,
  /^application\/vnd\.docker\.image\.rootfs\.(?:foreign\.)?diff\.tar(?:\.gzip|\.zstd)?$/,
];

/** The manifest that a document selects for linux/amd64. */
export interface Selection {
  /** digest of the manifest, whose content was checked only if it is the document itself */
  readonly digest: string;
  /** true when it is an entry of an index */
  readonly isEntry: boolean;
  /** the variant in the index; empty when there is none */
  readonly variant: string;
  /** layers of the manifest, lowest first; null when only the manifest's digest is known */
  readonly layers: readonly Descriptor[] | null;
}

/** The SHA-256 digest of a document. Other algorithms are not supported. */
export function digestOf(document: Uint8Array): string {
  return `sha256:${createHash("sha256").update(document).digest("hex")}`;
}

/**
 * Selects the manifest for this platform: the document itself, or an entry if it is an index.
 * @throws ApiError `not_found` when an index has no entry for this platform, `validation_error` when it is not an image
 */
export function selectManifest(document: Uint8Array): Selection {
  const parsed = parseJson(document);
  if (!isIndex(parsed)) {
    const { layers } = parseManifest(document);
    return { digest: digestOf(document), isEntry: false, variant: "", layers };
  }
  const index = checked(IndexDocument, parsed);
  const [only] = index.manifests;
  // A single entry may lack a platform; then `checkPlatform` checks the image's config.
  if (only !== undefined && index.manifests.length === 1 && only.platform === undefined) {
    return { digest: only.digest, isEntry: true, variant: "", layers: null };
  }
  const here = ({ platform }: IndexEntry) => platform?.os === OS && platform.architecture === ARCHITECTURE;
  const candidates = index.manifests.filter(here);
  for (const variant of VARIANTS) {
    const entry = candidates.find(({ platform }) => (platform?.variant ?? "") === variant);
    if (entry !== undefined) return { digest: entry.digest, isEntry: true, variant, layers: null };
  }
  const platforms = index.manifests.flatMap(({ platform }) =>
    platform ? [`${platform.os}/${platform.architecture}`] : [],
  );
  throw new ApiError("not_found", `the image is not available for ${OS}/${ARCHITECTURE}`, {
    platforms: platforms.slice(0, PLATFORMS_SHOWN_MAX),
  });
}

/**
 * Parses the manifest of one image.
 * @throws ApiError `validation_error` when it is not one (for example, an index) or cannot be used here
 */
export function parseManifest(document: Uint8Array): ImageManifest {
  const parsed = parseJson(document);
  if (Value.Check(Type.Object({ schemaVersion: Type.Literal(1) }), parsed)) {
    throw unusable("its manifest has the outdated schema version 1");
  }
  if (isIndex(parsed)) throw unusable("its index names another index");
  if (layersCount(parsed) > IMAGE_LAYERS_COUNT_MAX) {
    throw new ApiError("validation_error", `the image has more than ${IMAGE_LAYERS_COUNT_MAX} layers`);
  }
  const manifest = checked(ImageManifest, parsed);
  const { config, layers } = manifest;
  // Layers are not fetched from hosts that only the image names.
  if (layers.some(({ urls }) => Array.isArray(urls) && urls.length > 0)) {
    throw unusable("one of its layers is stored elsewhere (urls)");
  }
  if (!CONFIG_TYPES.includes(config.mediaType)) throw unusable(`its config has the type ${config.mediaType}`);
  const other = layers.find(({ mediaType }) => !LAYER_TYPES.some((type) => type.test(mediaType)));
  if (other !== undefined) throw unusable(`one of its layers has the type ${other.mediaType}`);
  return manifest;
}

/**
 * Reads the defaults of an image for commands. An image without a platform is accepted.
 * @param config content of the config's blob
 * @throws ApiError `validation_error` for an image for another platform
 */
export function parseConfig(config: Uint8Array): ImageDefaults {
  const { os, architecture, config: settings } = checked(ImageConfig, parseJson(config));
  if ((os || OS) === OS && (architecture || ARCHITECTURE) === ARCHITECTURE) return defaultsOf(settings);
  const platform = reasonOf(`${os || OS}/${architecture || ARCHITECTURE}`);
  throw new ApiError("validation_error", `the image is for ${platform}, not for ${OS}/${ARCHITECTURE}`, { platform });
}

/** The error for an image that cannot be imported. */
export function unusable(reason: string): ApiError {
  return new ApiError("validation_error", `the image cannot be used: ${reasonOf(reason)}`);
}

/** Counted before the schema is checked, because checking many layers takes long. */
function layersCount(parsed: unknown): number {
  const { layers } = (parsed ?? {}) as { readonly layers?: unknown };
  return Array.isArray(layers) ? layers.length : 0;
}

function isIndex(parsed: unknown): boolean {
  return typeof parsed === "object" && parsed !== null && "manifests" in parsed;
}

/** Checks a schema. Refuses a document that is both an index and a manifest, because readers would disagree on it. */
function checked<Schema extends TSchema>(schema: Schema, document: unknown): Static<Schema> {
  const isBoth = isIndex(document) && ("layers" in (document as object) || "config" in (document as object));
  if (isBoth || !Value.Check(schema, document)) throw unusable("its manifest or config is malformed");
  return document;
}

function parseJson(document: Uint8Array): unknown {
  refuseManyValues(document);
  try {
    return JSON.parse(Buffer.from(document).toString("utf8"));
  } catch (error) {
    throw new ApiError("validation_error", "the image's manifest or config is not JSON", {}, { cause: error });
  }
}

/** Every value, or name with its value, directly follows a comma, a bracket or a brace, so those are counted. */
function refuseManyValues(document: Uint8Array): void {
  const { quote, comma, bracket, backslash, brace } = CHARACTER;
  let count = 0;
  let isText = false;
  // Several times faster than iterating.
  for (let index = 0; index < document.length; index++) {
    const byte = document[index];
    if (byte === quote) isText = !isText;
    else if (isText) {
      if (byte === backslash) index += 1;
    } else if (byte === comma || byte === bracket || byte === brace) count += 1;
    if (count > DOCUMENT_VALUES_COUNT_MAX) throw unusable("its manifest or config has too many entries");
  }
}
