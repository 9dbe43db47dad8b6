import { eq, sql } from "drizzle-orm";
import { given } from "../domain/given.ts";
import type { AccountId, ImageId, LayerId, OperationId } from "../domain/ids.ts";
import type { ImageDefaults } from "../domain/image-defaults.ts";
import type { NetworkAudit } from "../domain/network.ts";
import { type Database, placeholders, statement } from "./database.ts";
import type { Orm } from "./drizzle-client.ts";
import { type ImageOrigin, insertHistory } from "./images/history.ts";
import { findImport } from "./images/images.ts";
import { moveTag, type TagChange } from "./images/tags.ts";
import { succeedOperation } from "./operations.ts";
import { headOf, type SavedState, saveState } from "./sandboxes/saving.ts";
import { baseProofs, images, type LayerFormat, layers, operations } from "./schema.ts";

/** A layer whose files are in place, but which has no row yet. */
export interface NewLayer {
  readonly id: LayerId;
  readonly parentId: LayerId | null;
  readonly format: LayerFormat;
  /** only for a base: manifest digest, platform and recipe of the tools */
  readonly baseKey?: string;
  readonly sizeBytes: number;
  readonly diskBytes: number;
  readonly entryCount: number;
}

export interface NewImage {
  readonly id: ImageId;
  readonly parentId: ImageId | null;
  readonly layerId: LayerId;
  readonly digest?: string;
  /** size that it adds to its parent, in `bytes`; 0 when it has the layer of its parent */
  readonly sizeBytes: number;
  /** its defaults for commands */
  readonly defaults: ImageDefaults;
  /** how it was made, for its lineage */
  readonly origin?: ImageOrigin;
}

/** The objects that become visible when an operation succeeds. */
export interface Publication {
  readonly result: Record<string, unknown>;
  readonly layer?: NewLayer | undefined;
  readonly image?: NewImage | undefined;
  /** true: an image of the account that an import of the same base made replaces `image`, also in the result */
  readonly reusesImage?: boolean;
  /** the tag to move to the image */
  readonly tag?: string | undefined;
  /** the default is `replaced` */
  readonly tagChange?: TagChange;
  /** the account has verified all content of the image's layer, which is a base */
  readonly provesBase?: boolean;
  /** the sandbox whose saved state the image is, or whose instance ends */
  readonly sandbox?: SavedState | undefined;
}

interface EndedPublication extends Publication {
  readonly operationId: OperationId;
  readonly now: number;
  /** audit of an instance's network; null when it had none */
  readonly network?: NetworkAudit | null;
}

/** The outcome of a publication. */
export interface Published {
  /** false when a base with the same key existed: the image uses that one, and the files of the new layer are garbage */
  readonly hasOwnLayer: boolean;
  /** the image that has lost the tag of the publication to another one, if there is one */
  readonly untagged?: ImageId;
}

/**
 * Ends an operation SUCCESS and makes its layer, image and tag visible, in one transaction. Returns null, and changes
 * nothing, when the operation is not EXECUTING or a cancel was accepted; the caller then removes the layer's files and
 * calls `failOperation`.
 */
export function publishOperation(db: Database, publication: EndedPublication): Published | null {
  return db.transaction((tx) => publish(db, tx, publication));
}

function publish(db: Database, tx: Orm, { operationId, now, ...publication }: EndedPublication): Published | null {
  const {
    result,
    layer,
    image,
    tag,
    tagChange = "replaced",
    provesBase = false,
    network = null,
    sandbox,
  } = publication;
  const reused =
    publication.reusesImage === true && image !== undefined ? imageToReuse(db, operationId, image, layer) : null;
  const finalResult = reused === null ? result : { ...result, image: reused };
  if (!succeedOperation(db, operationId, { result: finalResult, network }, now)) return null;
  const head = sandbox === undefined ? null : headOf(db, sandbox);
  const inserted = layer === undefined ? undefined : insertLayer(db, layer, now);
  const hasOwnLayer = inserted !== undefined && inserted === layer?.id;
  if (image === undefined) {
    if (sandbox !== undefined) saveState(db, sandbox, null, now);
    return { hasOwnLayer };
  }
  const { accountId, startedAt } = operationOf(db, operationId);
  const layerId = image.layerId === layer?.id && inserted !== undefined ? inserted : image.layerId;
  if (reused === null) {
    // A sandbox's images form one line, although each layer lies on the one that the instance started from.
    const child = { ...image, layerId, parentId: head ?? image.parentId };
    insertImage(db, child, { accountId, operationId, now });
    insertHistory(db, { image: child, operationId, startedAt, now });
    if (sandbox !== undefined) saveState(db, sandbox, image.id, now);
  }
  // An image that an operation uses is not removed for its age.
  else tx.update(operations).set({ imageId: reused }).where(eq(operations.id, operationId)).run();
  if (provesBase) tx.insert(baseProofs).values({ layerId, accountId, createdAt: now }).onConflictDoNothing().run();
  if (tag === undefined) return { hasOwnLayer };
  const untagged = moveTag(tx, accountId, reused ?? image.id, { name: tag, change: tagChange, now });
  return { hasOwnLayer, ...given({ untagged }) };
}

/** The image that an import of the same base has made for the account; null when there is none. */
function imageToReuse(
  db: Database,
  operationId: OperationId,
  { layerId, digest }: NewImage,
  layer: NewLayer | undefined,
): ImageId | null {
  const base = layer?.baseKey === undefined ? layerId : baseWithKey(db, layer.baseKey);
  if (base === undefined || digest === undefined) return null;
  return findImport(db.orm, operationOf(db, operationId).accountId, { layerId: base, digest });
}

const insertImageRow = statement((orm) =>
  orm
    .insert(images)
    .values({ ...placeholders(images), tagged: false })
    .prepare(),
);

function insertImage(
  db: Database,
  image: NewImage,
  { now, ...row }: { readonly accountId: AccountId; readonly operationId: OperationId; readonly now: number },
): void {
  const { id, parentId, layerId, digest = null, sizeBytes, defaults } = image;
  insertImageRow(db).run({ ...row, id, parentId, layerId, digest, sizeBytes, ...defaults, createdAt: now });
}

function baseWithKey({ orm }: Database, key: string): LayerId | undefined {
  return orm.select({ id: layers.id }).from(layers).where(eq(layers.baseKey, key)).get()?.id;
}

const insertLayerRow = statement((orm) => orm.insert(layers).values(placeholders(layers)).prepare());

/** Inserts a layer. Returns its id, or the id of an existing base with the same key. */
function insertLayer(db: Database, layer: NewLayer, now: number): LayerId {
  if (layer.baseKey !== undefined) {
    const existing = baseWithKey(db, layer.baseKey);
    if (existing !== undefined) return existing;
  }
  insertLayerRow(db).run({ ...layer, baseKey: layer.baseKey ?? null, createdAt: now });
  return layer.id;
}

const ownerOf = statement((orm) =>
  orm
    .select({ accountId: operations.accountId, startedAt: operations.startedAt })
    .from(operations)
    .where(eq(operations.id, sql.placeholder("id")))
    .prepare(),
);

function operationOf(
  db: Database,
  id: OperationId,
): { readonly accountId: AccountId; readonly startedAt: number | null } {
  const row = ownerOf(db).get({ id });
  if (row === undefined) throw new Error(`operation ${id} has no row`);
  return row;
}
