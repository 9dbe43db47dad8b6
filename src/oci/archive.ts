import { dirname, join } from "node:path";
import { ApiError } from "../domain/errors.ts";
import { scratchDirectory } from "../system/scratch.ts";
import { type ImageLayout, verifiedLayout } from "./layout.ts";
import { type Selection, selectManifest } from "./manifest.ts";
import { COPY_NAME, COPY_OPTIONS } from "./skopeo.ts";
import { refusal, runOffline } from "./skopeo-offline.ts";
import type { ToolBounds } from "./tool.ts";

export interface ArchiveOptions extends ToolBounds {
  /** the archive, in a directory of its own; it is only read */
  readonly path: string;
  /** private directory; what is put there is gone when the call returns */
  readonly scratch: string;
}

/** skopeo's names of what a file may be, the one that says more first: newer docker-archives hold a layout, too. */
const TRANSPORTS = ["oci-archive", "docker-archive"] as const;
export type ArchiveTransport = (typeof TRANSPORTS)[number];

/** The image of an archive that is for this platform. */
export interface ArchivedImage extends Selection {
  readonly transport: ArchiveTransport;
}

/**
 * Finds out what kind of archive a file is, and which of its manifests this platform gets. That the archive has what the
 * manifest names is not known yet.
 * @throws ApiError `validation_error` when it holds no image, or more than one
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
  throw new ApiError("validation_error", "the file is no archive of one image", { reasons: refusals });
}

/**
 * Copies an image of an archive into a layout, and verifies all of it. skopeo cannot be told a digest here: where an
 * index's entries contradict each other, so that it takes another one than was selected, the import is refused.
 * @throws ApiError `validation_error`, `insufficient_storage`, `payload_too_large`
 */
export async function copyArchive(
  { transport, digest, variant }: ArchivedImage,
  options: ArchiveOptions & { /** layout to be made; its parent exists, it does not */ readonly directory: string },
): Promise<ImageLayout> {
  const { path, scratch, signal } = options;
  await using own = await scratchDirectory(scratch, "copy-");
  const argv = ["copy", ...COPY_OPTIONS, `${transport}:${path}`, `dir:${COPY_NAME}`];
  const access = { ...options, directory: own.path, readable: [dirname(path)] };
  const outcome = await runOffline(argv, access, { variant });
  if (!(outcome instanceof Uint8Array)) {
    const message = `the archive cannot be read: ${refusal(outcome, [own.path, scratch])}`;
    throw new ApiError("validation_error", message, {}, { cause: outcome });
  }
  return await verifiedLayout(join(own.path, COPY_NAME), digest, { directory: options.directory, signal });
}
