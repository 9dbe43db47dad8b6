import { eq } from "drizzle-orm";
import type { AccountId, ImageId, LayerId, OperationId } from "../domain/ids.ts";
import type { NetworkAudit } from "../domain/network.ts";
import type { Database, Orm } from "./database.ts";
import { type ImageOrigin, insertHistory } from "./history.ts";
import { succeedOperation } from "./operations.ts";
import { baseProofs, images, type LayerFormat, layers, operations } from "./schema.ts";
import { moveTag } from "./tags.ts";

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
  /** size that it adds to its parent, in `bytes` */
  readonly sizeBytes: number;
  /** how it was made, for its lineage */
  readonly origin?: ImageOrigin;
}

/** What becomes visible when an operation succeeds. */
export interface Publication {
  readonly result: Record<string, unknown>;
  readonly layer?: NewLayer | undefined;
  readonly image?: NewImage | undefined;
  /** the tag to move to the image */
  readonly tag?: string | undefined;
  /** the account has verified all content of the image's layer, which is a base */
  readonly provesBase?: boolean;
}

interface EndedPublication extends Publication {
  readonly operationId: OperationId;
  readonly now: number;
  /** what an instance did with its network; null when it had none */
  readonly network?: NetworkAudit | null;
}

/** The outcome of a publication. */
export interface Published {
  /** false when a base with the same key existed: the image uses that one, and the files of the new layer are garbage */
  readonly hasOwnLayer: boolean;
}

/**
 * Ends an operation SUCCESS and makes its layer, image and tag visible, in one transaction. Returns null, and changes
 * nothing, when the operation is not EXECUTING or a cancel was accepted; the caller then removes the layer's files and
 * calls `failOperation`.
 */
export function publishOperation(db: Database, publication: EndedPublication): Published | null {
  return db.transaction((tx) => publish(tx, publication));
}

function publish(tx: Orm, { operationId, now, ...publication }: EndedPublication): Published | null {
  const { result, layer, image, tag, provesBase = false, network = null } = publication;
  if (!succeedOperation(tx, operationId, { result, network }, now)) return null;
  const inserted = layer === undefined ? undefined : insertLayer(tx, layer, now);
  const published = { hasOwnLayer: inserted !== undefined && inserted === layer?.id };
  if (image === undefined) return published;
  const { accountId, startedAt } = operationOf(tx, operationId);
  const layerId = image.layerId === layer?.id && inserted !== undefined ? inserted : image.layerId;
  tx.insert(images)
    .values({
      id: image.id,
      accountId,
      parentId: image.parentId,
      operationId,
      layerId,
      digest: image.digest ?? null,
      sizeBytes: image.sizeBytes,
      createdAt: now,
    })
    .run();
  insertHistory(tx, { image, operationId, startedAt, now });
  if (provesBase) tx.insert(baseProofs).values({ layerId, accountId, createdAt: now }).onConflictDoNothing().run();
  if (tag !== undefined) moveTag(tx, accountId, image.id, { name: tag, change: "replaced", now });
  return published;
}

/** Inserts a layer. Returns its id, or the id of an existing base with the same key. */
function insertLayer(tx: Orm, layer: NewLayer, now: number): LayerId {
  if (layer.baseKey !== undefined) {
    const existing = tx.select({ id: layers.id }).from(layers).where(eq(layers.baseKey, layer.baseKey)).get();
    if (existing !== undefined) return existing.id;
  }
  tx.insert(layers)
    .values({ ...layer, baseKey: layer.baseKey ?? null, createdAt: now })
    .run();
  return layer.id;
}

function operationOf(tx: Orm, id: OperationId): { readonly accountId: AccountId; readonly startedAt: number | null } {
  const { accountId, startedAt } = operations;
  const row = tx.select({ accountId, startedAt }).from(operations).where(eq(operations.id, id)).get();
  if (row === undefined) throw new Error(`operation ${id} has no row`);
  return row;
}
