import { createHash } from "node:crypto";
import { type Static, type TSchema, Type } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";
import { ApiError } from "../domain/errors.ts";
import { reasonOf } from "./tool-failure.ts";

/** What registries and image tools allow a manifest to have, and image tools a config. */
export const DOCUMENT_BYTES_MAX = 4_194_304;
/** More than the longest chain of runs that anybody saves; each of them costs a look-up. */
export const IMAGE_LAYERS_COUNT_MAX = 4096;

/**
 * Values in a document: those of an image of IMAGE_LAYERS_COUNT_MAX layers take a third of it. Nothing else happens while
 * a document is read, and more values than these take longer than others may wait.
 */
const DOCUMENT_VALUES_COUNT_MAX = 49_152;
/** Far more than there are platforms. */
const INDEX_ENTRIES_COUNT_MAX = 4096;
const CHARACTER = { quote: 0x22, comma: 0x2c, bracket: 0x5b, backslash: 0x5c, brace: 0x7b } as const;

const Digest = Type.String({ pattern: "^sha256:[0-9a-f]{64}$" });

/** Names a blob by what it holds; `size` is in `bytes`. */
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

const ImageConfig = Type.Object({ os: Type.Optional(Type.String()), architecture: Type.Optional(Type.String()) });

const OS = "linux";
const ARCHITECTURE = "amd64";
/** Best first; the higher ones need newer processors. Image tools take the empty one and none for the same. */
const VARIANTS = ["", "v1", "v2", "v3"];
const PLATFORMS_SHOWN_MAX = 20;

const CONFIG_TYPES = ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYER_TYPES = [
  /^application\/vnd\.oci\.image\.layer\.(?:nondistributable\.)?v1\.tar(?:\+gzip|\+zstd)?$/,
  /^application\/vnd\.docker\.image\.rootfs\.(?:foreign\.)?diff\.tar(?:\.gzip|\.zstd)?$/,
];

/** Which manifest a document means for linux/amd64. */
export interface Selection {
  /** of the manifest; what it holds was looked at only when it is the document itself */
  readonly digest: string;
  /** an index named it */
  readonly isEntry: boolean;
  /** as the index has it, empty for none */
  readonly variant: string;
}

/** The digest of a document: SHA-256, which is the only algorithm that is taken. */
export function digestOf(document: Uint8Array): string {
  return `sha256:${createHash("sha256").update(document).digest("hex")}`;
}

/**
 * Chooses the manifest for this platform: the document itself, or an entry when it is an index of several.
 * @throws ApiError `not_found` when the index has none for this platform, `validation_error` when it is no image
 */
export function selectManifest(document: Uint8Array): Selection {
  const parsed = parseJson(document);
  if (!isIndex(parsed)) {
    parseManifest(document);
    return { digest: digestOf(document), isEntry: false, variant: "" };
  }
  const index = checked(IndexDocument, parsed);
  const [only] = index.manifests;
  // Then the image's own config tells the platform: see `checkPlatform`.
  if (only !== undefined && index.manifests.length === 1 && only.platform === undefined) {
    return { digest: only.digest, isEntry: true, variant: "" };
  }
  const here = ({ platform }: IndexEntry) => platform?.os === OS && platform.architecture === ARCHITECTURE;
  const candidates = index.manifests.filter(here);
  for (const variant of VARIANTS) {
    const entry = candidates.find(({ platform }) => (platform?.variant ?? "") === variant);
    if (entry !== undefined) return { digest: entry.digest, isEntry: true, variant };
  }
  const platforms = index.manifests.flatMap(({ platform }) =>
    platform ? [`${platform.os}/${platform.architecture}`] : [],
  );
  throw new ApiError("not_found", `the image is not there for ${OS}/${ARCHITECTURE}`, {
    platforms: platforms.slice(0, PLATFORMS_SHOWN_MAX),
  });
}

/**
 * Reads the manifest of one image.
 * @throws ApiError `validation_error` when it is none, an index for instance, or one that cannot be used here
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
  // Nothing is asked of a host that only an image names.
  if (layers.some(({ urls }) => Array.isArray(urls) && urls.length > 0)) {
    throw unusable("a layer of it is elsewhere, by its urls");
  }
  if (!CONFIG_TYPES.includes(config.mediaType)) throw unusable(`its config is of the type ${config.mediaType}`);
  const other = layers.find(({ mediaType }) => !LAYER_TYPES.some((type) => type.test(mediaType)));
  if (other !== undefined) throw unusable(`a layer of it is of the type ${other.mediaType}`);
  return manifest;
}

/**
 * Refuses an image that says that it is for another platform; one that says nothing is taken.
 * @param config content of the config's blob
 * @throws ApiError `validation_error`
 */
export function checkPlatform(config: Uint8Array): void {
  const { os, architecture } = checked(ImageConfig, parseJson(config));
  if ((os || OS) === OS && (architecture || ARCHITECTURE) === ARCHITECTURE) return;
  const platform = reasonOf(`${os || OS}/${architecture || ARCHITECTURE}`);
  throw new ApiError("validation_error", `the image is for ${platform}, not for ${OS}/${ARCHITECTURE}`, { platform });
}

/** What cannot be imported, in the shape of an error. */
export function unusable(reason: string): ApiError {
  return new ApiError("validation_error", `the image cannot be used: ${reasonOf(reason)}`);
}

/** Of what was not checked yet, which takes long where they are many. */
function layersCount(parsed: unknown): number {
  const { layers } = (parsed ?? {}) as { readonly layers?: unknown };
  return Array.isArray(layers) ? layers.length : 0;
}

function isIndex(parsed: unknown): boolean {
  return typeof parsed === "object" && parsed !== null && "manifests" in parsed;
}

/** A document that one reader takes for an index and another for a manifest is taken for neither. */
function checked<Schema extends TSchema>(schema: Schema, document: unknown): Static<Schema> {
  const isBoth = isIndex(document) && ("layers" in (document as object) || "config" in (document as object));
  if (isBoth || !Value.Check(schema, document)) throw unusable("its manifest or config is malformed");
  return document;
}

function parseJson(document: Uint8Array): unknown {
  refuseMany(document);
  try {
    return JSON.parse(Buffer.from(document).toString("utf8"));
  } catch (error) {
    throw new ApiError("validation_error", "the image's manifest or config is no JSON", {}, { cause: error });
  }
}

/** Each value, or name with its value, comes right after a comma, a bracket or a brace. */
function refuseMany(document: Uint8Array): void {
  const { quote, comma, bracket, backslash, brace } = CHARACTER;
  let count = 0;
  let isText = false;
  // Several times as quick as iterating.
  for (let index = 0; index < document.length; index++) {
    const byte = document[index];
    if (byte === quote) isText = !isText;
    else if (isText) {
      if (byte === backslash) index += 1;
    } else if (byte === comma || byte === bracket || byte === brace) count += 1;
    if (count > DOCUMENT_VALUES_COUNT_MAX) throw unusable("its manifest or config has too many entries");
  }
}
