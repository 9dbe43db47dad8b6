import { dirname, join } from "node:path";
import { ApiError } from "../domain/errors.ts";
import { scratchDirectory } from "../system/scratch.ts";
import { type CopyProgress, watchCopy } from "./copy-progress.ts";
import { type ImageLayout, verifiedLayout } from "./layout.ts";
import { type Selection, selectManifest } from "./manifest.ts";
import { COPY_NAME, COPY_OPTIONS } from "./skopeo.ts";
import { refusal, runOffline } from "./skopeo-offline.ts";
import type { ToolBounds } from "./tool.ts";

export interface ArchiveOptions extends ToolBounds {
  /** path of the archive, in a directory of its own; it is only read */
  readonly path: string;
  /** private directory; everything put there is removed before the call returns */
  readonly scratch: string;
}

/** skopeo's names of formats. The more informative one is first, because newer docker-archives also contain a layout. */
const TRANSPORTS = ["oci-archive", "docker-archive"] as const;
export type ArchiveTransport = (typeof TRANSPORTS)[number];

/** The image in an archive for this platform. */
export interface ArchivedImage extends Selection {
  readonly transport: ArchiveTransport;
}

/**
 * Determines the format of an archive and selects the manifest for this platform. Whether the archive contains everything
 * that the manifest names is not checked.
 * @throws ApiError `validation_error` when it does not contain exactly one image
 */
export async function inspectArchive(options: ArchiveOptions): Promise<ArchivedImage> {
  const { path, scratch } = options;
  const refusals: string[] = [];
  for (const transport of TRANSPORTS) {
    const argv = ["inspect", "--raw", `${transport}:${path}`];
    const outcome = await runOffline(argv, { ...options, directory: scratch, readable: [dirname(path)] });
    if (outcome instanceof Uint8Array) return { transport, ...selectManifest(outcome) };
    refusals.push(`${transport}: ${refusal(outcome, [scratch])}`);
  }
  throw new ApiError("validation_error", "the file is not an archive with one image", { reasons: refusals });
}

/**
 * Copies an image from an archive to a layout, and verifies all of it. skopeo cannot select by digest here: if it selects
 * another manifest, because the entries of an index contradict each other, the import is refused.
 * @throws ApiError `validation_error`, `insufficient_storage`, `payload_too_large`
 */
export async function copyArchive(
  { transport, digest, variant, layers }: ArchivedImage,
  options: ArchiveOptions & {
    /** layout to create, in an existing directory */
    readonly directory: string;
    /** called when more of the image was read; not for an entry of an index, whose layers are not known yet */
    readonly onProgress: (progress: CopyProgress) => void;
  },
): Promise<ImageLayout> {
  const { path, scratch, signal } = options;
  await using own = await scratchDirectory(scratch, "copy-");
  const argv = ["copy", ...COPY_OPTIONS, `${transport}:${path}`, `dir:${COPY_NAME}`];
  const access = { ...options, directory: own.path, readable: [dirname(path)] };
  const copy = join(own.path, COPY_NAME);
  await using watch = watchCopy(copy, layers ?? [], options.onProgress);
  const outcome = await runOffline(argv, access, { variant });
  if (!(outcome instanceof Uint8Array)) {
    const message = `the archive cannot be read: ${refusal(outcome, [own.path, scratch])}`;
    throw new ApiError("validation_error", message, {}, { cause: outcome });
  }
  await watch.finish();
  return await verifiedLayout(copy, digest, { directory: options.directory, signal });
}
