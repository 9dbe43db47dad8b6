import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { type Static, type TSchema, Type } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";
import { ApiError } from "../domain/errors.ts";
import { reasonOf } from "./tool-failure.ts";

const Digest = Type.String({ pattern: "^sha256:[0-9a-f]{64}$" });

const ManifestDocument = Type.Object({
  schemaVersion: Type.Literal(2),
  config: Type.Object({ digest: Digest }),
  layers: Type.Array(Type.Object({ digest: Digest, urls: Type.Optional(Type.Unknown()) })),
});
type ManifestDocument = Static<typeof ManifestDocument>;

const Platform = Type.Object({ os: Type.String(), architecture: Type.String(), variant: Type.Optional(Type.String()) });
const IndexEntry = Type.Object({ digest: Digest, platform: Type.Optional(Platform) });
type IndexEntry = Static<typeof IndexEntry>;

const IndexDocument = Type.Object({ schemaVersion: Type.Literal(2), manifests: Type.Array(IndexEntry) });

const OS = "linux";
const ARCHITECTURE = "amd64";
/** Best first; the higher ones need newer processors. */
const VARIANTS = [undefined, "", "v1", "v2", "v3"];
const PLATFORMS_SHOWN_MAX = 20;

/**
 * The digest of the manifest for linux/amd64: of the document itself, or of an entry when it is an index of several.
 * @param digest of `document`
 * @throws ApiError `not_found` when the index has none for this platform, `validation_error` when it is no image
 */
export function selectManifest(document: Uint8Array, digest: string): string {
  const parsed = parseJson(document);
  if (Value.Check(ManifestDocument, parsed)) {
    checkLayers(parsed);
    return digest;
  }
  if (!Value.Check(IndexDocument, parsed)) {
    const old = Value.Check(Type.Object({ schemaVersion: Type.Literal(1) }), parsed);
    const reason = old ? "its manifest has the outdated schema version 1" : "its manifest is no image's";
    throw new ApiError("validation_error", `the image cannot be used: ${reason}`);
  }
  const [only] = parsed.manifests;
  // Then the image's own config tells the platform: see `checkLayoutPlatform`.
  if (only !== undefined && parsed.manifests.length === 1 && only.platform === undefined) return only.digest;
  const here = ({ platform }: IndexEntry) => platform?.os === OS && platform.architecture === ARCHITECTURE;
  const candidates = parsed.manifests.filter(here);
  for (const variant of VARIANTS) {
    const entry = candidates.find(({ platform }) => platform?.variant === variant);
    if (entry !== undefined) return entry.digest;
  }
  const platforms = parsed.manifests.flatMap(({ platform }) =>
    platform ? [`${platform.os}/${platform.architecture}`] : [],
  );
  throw new ApiError("not_found", `the image is not there for ${OS}/${ARCHITECTURE}`, {
    platforms: platforms.slice(0, PLATFORMS_SHOWN_MAX),
  });
}

/** More than the longest chain of runs that anybody saves; each of them costs a look-up. */
export const IMAGE_LAYERS_COUNT_MAX = 4096;

/** @throws ApiError `validation_error` */
function checkLayers({ layers }: ManifestDocument): void {
  if (layers.length > IMAGE_LAYERS_COUNT_MAX) {
    throw new ApiError("validation_error", `the image has more than ${IMAGE_LAYERS_COUNT_MAX} layers`);
  }
  // Nothing is asked of a host that only an image names.
  if (layers.some(({ urls }) => Array.isArray(urls) && urls.length > 0)) {
    throw new ApiError("validation_error", "the image cannot be used: a layer of it is elsewhere, by its urls");
  }
}

function parseJson(document: Uint8Array): unknown {
  try {
    return JSON.parse(Buffer.from(document).toString("utf8"));
  } catch (error) {
    throw new ApiError("validation_error", "the registry's answer is no manifest", {}, { cause: error });
  }
}

/** A config has the whole history of a build; longer ones are no image's. */
const CONFIG_BYTES_MAX = 16_777_216;

const LayoutIndex = Type.Object({ manifests: Type.Array(Type.Object({ digest: Digest }), { minItems: 1 }) });
const ImageConfig = Type.Object({ os: Type.Optional(Type.String()), architecture: Type.Optional(Type.String()) });

/**
 * Refuses the one image in a layout when it says that it is for another platform; an image that says nothing is taken.
 * @throws ApiError `validation_error`
 */
export async function checkLayoutPlatform(directory: string): Promise<void> {
  const index = await readDocument(LayoutIndex, join(directory, "index.json"));
  const manifest = await readDocument(ManifestDocument, blobPath(directory, index.manifests[0]?.digest));
  checkLayers(manifest);
  const { os, architecture } = await readDocument(ImageConfig, blobPath(directory, manifest.config.digest));
  if ((os || OS) === OS && (architecture || ARCHITECTURE) === ARCHITECTURE) return;
  const platform = reasonOf(`${os || OS}/${architecture || ARCHITECTURE}`);
  throw new ApiError("validation_error", `the image is for ${platform}, not for ${OS}/${ARCHITECTURE}`, { platform });
}

function blobPath(directory: string, digest = ""): string {
  return join(directory, "blobs", digest.replace(":", "/"));
}

async function readDocument<Schema extends TSchema>(schema: Schema, path: string): Promise<Static<Schema>> {
  const { size } = await stat(path);
  const document = size > CONFIG_BYTES_MAX ? null : parseJson(await readFile(path));
  if (!Value.Check(schema, document)) {
    throw new ApiError("validation_error", "the image cannot be used: its manifest or config is malformed");
  }
  return document;
}
