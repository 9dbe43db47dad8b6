import { link, mkdir, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { CgroupTree } from "../../cgroup/cgroup.ts";
import type { Database } from "../../db/database.ts";
import { findImport, imageDefaults } from "../../db/images/images.ts";
import { findBaseLayer, findProvenBase, type LayerRow } from "../../db/images/layers.ts";
import type { NewLayer, Publication } from "../../db/publish.ts";
import { given } from "../../domain/given.ts";
import type { FileId, ImageId } from "../../domain/ids.ts";
import type { ImageDefaults } from "../../domain/image-defaults.ts";
import { Spid } from "../../domain/log-event.ts";
import type { StoredImportResult } from "../../domain/operation.ts";
import { parseRegistryReference } from "../../domain/registry-reference.ts";
import type { Log } from "../../log.ts";
import type { Gate } from "../../network/gate.ts";
import { checkRegistryHost, type RegistryHosts, registryResolver } from "../../network/registry-policy.ts";
import { copyArchive, inspectArchive } from "../../oci/archive.ts";
import { buildBaseDisk } from "../../oci/base-disk.ts";
import type { CopyProgress } from "../../oci/copy-progress.ts";
import type { ImageLayout } from "../../oci/layout.ts";
import { copyToLayout, inspectDefaults, inspectImage } from "../../oci/skopeo.ts";
import { readableLayout } from "../../oci/skopeo-offline.ts";
import type { ToolBounds } from "../../oci/tool.ts";
import { requireWithinLimits, type TreeLimits, type TreeUsage, treeUsage, watchTree } from "../../oci/tree-limits.ts";
import { type UnpackOptions, unpack } from "../../oci/umoci.ts";
import { blobPath } from "../../storage/blobs.ts";
import type { IndexMemory } from "../../storage/index/index-memory.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";
import type { StagedLayer } from "../../storage/layers/staged-layer.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { untrustedDirectory } from "../../system/scratch.ts";
import type { ToolNetwork } from "../../system/tool-network.ts";
import type { MachineShape } from "../../vm/vmm.ts";
import type { DiskGuard, DiskUse } from "../disk-guard.ts";
import { listLayer } from "../instance/list-layer.ts";
import { listBaseMs } from "../machines/guest-budgets.ts";
import type { MachineSource } from "../machines/machine-source.ts";
import type { OperationRef } from "../operations/changes.ts";
import type { Credentials } from "../operations/kind.ts";
import type { Laps } from "../operations/laps.ts";
import { type Prepared, prepared, type WorkContext, type Worker, withinLimit } from "../operations/work.ts";
import { importCost, pullLimits, toolsLimits } from "./import-bounds.ts";

/** Part of a base's key. It changes when the same manifest would give another disk, or is verified more strictly. */
const BASE_RECIPE = "linux/amd64 3";

/** Where the image of an import comes from. */
export type ImportSource =
  /** `reference` is the full spelling, host included, as `parseRegistryReference` gives it */
  | { readonly kind: "registry"; readonly reference: string }
  /** an uploaded file */
  | { readonly kind: "archive"; readonly fileId: FileId; readonly sha256: string };

/** A validated import that may be queued. */
export interface ImportSubmission {
  readonly source: ImportSource;
  readonly credentials: Credentials | null;
  readonly tag: string | null;
  readonly timeoutSeconds: number;
  /** true: an image of the account that an import of the same digest made is the result, if there is one */
  readonly reuse: boolean;
  /** true: the tag is added to those of the image; false: it replaces the one that the image shows */
  readonly keepTags: boolean;
}

export interface ImportContext {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly machines: MachineSource;
  readonly log: Log;
  readonly registries: RegistryHosts;
  /** the network of skopeo, which leads through the gate only */
  readonly network: ToolNetwork;
  /** makes the connections of skopeo */
  readonly gate: Gate;
  /** shape of the machine that lists the image's files */
  readonly shape: MachineShape;
  /** memory budget of all operations together, in `bytes` */
  readonly memoryBudgetBytes: number;
  /** ends the import when it fills the disk: an archive may unpack to any size */
  readonly diskGuard: Pick<DiskGuard, "watch">;
  /** limits of an unpacked image */
  readonly limits: TreeLimits;
  /** the memory budget that all index writers share */
  readonly indexMemory: IndexMemory;
  readonly cgroups: CgroupTree;
}

interface Base {
  readonly digest: string;
  readonly key: string;
}

/** Does the work of imports: pulls and verifies an image, unpacks it, builds the base disk and lists it in a machine. */
export function importWorker(context: ImportContext): Worker<ImportSubmission, ImportSubmission> {
  const { shape, memoryBudgetBytes } = context;
  return {
    cost: () => importCost(shape, memoryBudgetBytes),
    prepare: async (operation, submission, { signal, laps, events }) => {
      const { timeoutSeconds: seconds } = submission;
      using diskUse = context.diskGuard.watch({ name: `import ${operation.id}` });
      diskUse.add(events.path);
      return await withinLimit({ name: "import", seconds, signal }, (limited) =>
        importImage({ ...context, laps, events, diskUse }, operation, submission, {
          timeoutMs: seconds * 1000,
          signal: AbortSignal.any([limited, diskUse.full, events.failed]),
        }),
      );
    },
  };
}

async function importImage(
  context: ImportContext & Pick<WorkContext, "laps" | "events"> & { readonly diskUse: DiskUse },
  { id, accountId }: OperationRef,
  submission: ImportSubmission,
  time: Pick<ToolBounds, "timeoutMs" | "signal">,
): Promise<Prepared> {
  const { db, layout, layers, limits, laps } = context;
  const progress = (step: ImportStep, more: Record<string, unknown> = {}) =>
    context.events.append(Spid.agent, "progress", { step, ...more });
  progress("resolving");
  await using stack = new AsyncDisposableStack();
  const scratch = stack.use(await untrustedDirectory(layout.tmp, "import-"));
  const limited = toolsLimits(importCost(context.shape, context.memoryBudgetBytes));
  const group = stack.use(await context.cgroups.create(`import-${id}`, limited));
  const launcher = await context.machines.launcher(time.signal);
  const bounds = { ...time, launcher, controlGroups: group.directories, fileBytesMax: limits.bytesMax };
  context.diskUse.addTree(async (limitMs) => (await treeUsage(scratch.path, { ...bounds, timeoutMs: limitMs })).bytes);
  const pulling = stack.use(
    watchTree(scratch.path, pullLimits(limits, await archiveBytes(layout, submission)), bounds),
  );
  const pullBounds = { ...bounds, signal: AbortSignal.any([bounds.signal, pulling.exceeded]) };
  const { digest, defaults, copyTo } = await openSource(context, submission, { scratch: scratch.path, ...pullBounds });
  laps.lap("resolve");
  const base = { digest, key: `${digest} ${BASE_RECIPE}` };
  const sharing = (layer: LayerRow, defaults: ImageDefaults): Prepared => {
    stack.use(layers.hold([layer.id]));
    return prepared(stack, publicationOf({ submission, base, defaults }, layer), () => undefined);
  };
  // The digest is not verified yet, so an account gets a base by it only when that account has verified the base before.
  const proved = findProvenBase(db, accountId, base.key);
  if (proved !== null) {
    const twin = findImport(db.orm, accountId, { layerId: proved.id, digest });
    return sharing(proved, twin === null ? await defaults() : imageDefaults(db, twin));
  }

  progress("pulling");
  const image = await copyTo(join(scratch.path, "layout"), (copied) => progress("pulling", pulledFields(copied)));
  laps.lap("pull");
  const existing = findBaseLayer(db, base.key);
  if (existing !== null) return sharing(existing, image.defaults);

  const directory = await readableLayout(image, { directory: join(scratch.path, "packed"), ...pullBounds });
  await pulling[Symbol.asyncDispose]();
  progress("unpacking");
  const staging = join(scratch.path, "staging");
  const usage = await unpackWithin(limits, { layout: directory, into: join(staging, "upper"), ...bounds });
  laps.lap("unpack");
  progress("building");
  const diskPath = join(scratch.path, "base", "disk");
  await mkdir(dirname(diskPath));
  const { format } = await buildBaseDisk({ staging, path: diskPath, usage, ...bounds });
  laps.lap("build");
  progress("indexing");
  const layer = stack.use(await listAndStage(context, scratch.path, { diskPath, ...usage }, bounds.signal));
  const { id: layerId, sizeBytes, diskBytes, entryCount } = layer;
  const row = { id: layerId, parentId: null, format, baseKey: base.key, sizeBytes, diskBytes, entryCount };
  const publication = publicationOf({ submission, base, defaults: image.defaults }, row);
  return prepared(stack, { ...publication, layer: row }, ({ hasOwnLayer }) => {
    // When another import has published the same base first, its layer is used and these files are removed.
    if (hasOwnLayer) layer.keep();
  });
}

/** Steps of an import in its `progress` events. A step that is not needed is left out. */
type ImportStep = "resolving" | "pulling" | "unpacking" | "building" | "indexing";

/** The fields of a `progress` event for a report on the copy. */
function pulledFields({ sizeBytes, pulledBytes, layers }: CopyProgress): Record<string, unknown> {
  const layerFields = layers.map((layer) => ({
    digest: layer.digest,
    size_bytes: layer.sizeBytes,
    pulled_bytes: layer.pulledBytes,
  }));
  return { pulled_bytes: pulledBytes, size_bytes: sizeBytes, layers: layerFields };
}

/** Size of the archive that an image is imported from, in `bytes`. */
async function archiveBytes(layout: DataLayout, { source }: ImportSubmission): Promise<number> {
  return source.kind === "archive" ? (await stat(blobPath(layout, source.sha256))).size : 0;
}

/** Unpacks an image, and returns the size of the result. @throws ApiError as `unpack` and `requireWithin` do */
async function unpackWithin(limits: TreeLimits, options: UnpackOptions): Promise<TreeUsage> {
  const staging = dirname(options.into);
  await mkdir(staging, { mode: 0o755 });
  {
    await using watch = watchTree(staging, limits, options);
    await unpack({ ...options, signal: AbortSignal.any([options.signal, watch.exceeded]) });
  }
  return await requireWithinLimits(staging, limits, options);
}

/** The source of an import's image. */
interface Source {
  /** digest that the source claims for the manifest of this platform; the manifest and its layers may be missing */
  readonly digest: string;
  /** The defaults of the manifest's image for commands, verified by the digest. */
  defaults(): Promise<ImageDefaults>;
  /** Copies everything that the manifest names into an OCI layout, and verifies it. */
  copyTo(directory: string, onProgress: (progress: CopyProgress) => void): Promise<ImageLayout>;
}

async function openSource(
  { layout, registries, network, gate }: ImportContext,
  { source, credentials }: ImportSubmission,
  bounds: ToolBounds & { readonly scratch: string },
): Promise<Source> {
  if (source.kind === "archive") {
    const path = join(bounds.scratch, "source", "archive");
    await mkdir(dirname(path));
    await link(blobPath(layout, source.sha256), path);
    const image = await inspectArchive({ path, ...bounds });
    const copyTo: Source["copyTo"] = (directory, onProgress) =>
      copyArchive(image, { path, directory, onProgress, ...bounds });
    const defaults = async () => (await copyTo(join(bounds.scratch, "layout"), () => undefined)).defaults;
    return { digest: image.digest, defaults, copyTo };
  }
  const reference = parseRegistryReference(source.reference);
  const settings = await checkRegistryHost(reference.host, registries, registryResolver(gate, bounds.signal));
  const access = { credentials, settings, hosts: registries, network, gate, ...bounds };
  const selection = await inspectImage(reference, access);
  const copyTo: Source["copyTo"] = (directory, onProgress) =>
    copyToLayout(reference, { ...access, selection, directory, onProgress });
  return { digest: selection.digest, defaults: () => inspectDefaults(reference, selection, access), copyTo };
}

/** Lists the files of a base disk in a separate machine, and stages disk and index as a layer. */
async function listAndStage(
  context: ImportContext & { readonly laps: Laps },
  directory: string,
  { diskPath, entries }: { readonly diskPath: string; readonly entries: number },
  signal: AbortSignal,
): Promise<StagedLayer> {
  const files = { diskPath, indexPath: join(directory, "index") };
  const job = { ...files, name: "the image", allowedMs: () => listBaseMs(entries) };
  return await context.layers.publish(files, await listLayer({ ...context, signal }, job));
}

function publicationOf(
  {
    submission,
    base,
    defaults,
  }: { readonly submission: ImportSubmission; readonly base: Base; readonly defaults: ImageDefaults },
  { id: layerId, sizeBytes }: NewLayer | LayerRow,
): Publication {
  const image = Bun.randomUUIDv7() as ImageId;
  const { tag, reuse, keepTags } = submission;
  const { digest } = base;
  const result: StoredImportResult = { image, ...given({ tag }), digest, size_bytes: sizeBytes };
  const origin = { source: sourceText(submission.source) };
  return {
    result,
    image: { id: image, parentId: null, layerId, digest, sizeBytes, defaults, origin },
    reusesImage: reuse,
    tag: tag ?? undefined,
    tagChange: keepTags ? "added" : "replaced",
    provesBase: true,
  };
}

/** The source as the history of the image shows it. */
function sourceText(source: ImportSource): string {
  return source.kind === "archive" ? `archive sha256:${source.sha256}` : source.reference;
}
