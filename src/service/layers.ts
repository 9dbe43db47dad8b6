import { getImage, type ImageRow } from "../db/images.ts";
import { type LayerRow, layerChain } from "../db/layers.ts";
import { ApiError } from "../domain/errors.ts";
import type { AccountId, ImageId } from "../domain/ids.ts";
import { sharedLayerHolds } from "../storage/layers/layer-holds.ts";
import { indexPath, layerPath } from "../storage/layers/layers.ts";
import { type LayerFiles, sharedOpenLayers } from "../storage/layers/open-layers.ts";
import type { Wanted } from "../storage/pacer.ts";
import { ImageTree } from "../storage/tree/image-tree.ts";
import type { Principal, ServiceParts } from "./parts.ts";

/** Bytes that are made while they are read. A chunk is good until the next one is asked for. */
export interface ByteSource {
  readonly chunks: AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
  /** what the bytes are made of; to be disposed at their end, however it comes */
  readonly held: Disposable;
}

export function noSuchImage(id: string): ApiError {
  return new ApiError("not_found", "no such image", { uuid: id });
}

/** @throws ApiError `not_found` also for an image of another account */
export function requireImage({ db }: ServiceParts, { accountId }: Principal, id: ImageId): ImageRow {
  const row = getImage(db, accountId, id);
  if (row === null) throw noSuchImage(id);
  return row;
}

/** The layers of an image, the lowest first. They stay until disposal, also when the image is deleted. */
export function heldLayers(
  parts: ServiceParts,
  image: ImageRow,
): { readonly files: LayerFiles[]; readonly held: Disposable } {
  const layers = layerChain(parts.db, image.layerId);
  const held = sharedLayerHolds.hold(layers.map(({ id }) => id));
  return { files: layerFiles(parts, layers), held };
}

/** Somebody who looks into images as long as `signal` does not fire: all who do so for one account take turns. */
export function readerOf(accountId: AccountId, signal: AbortSignal): Wanted {
  return { owner: `reader ${accountId}`, throwIfAborted: () => signal.throwIfAborted() };
}

/**
 * The merged file system of an image; nothing is booted or mounted. The layers stay until disposal, also when the image
 * is deleted, and what is done with the tree ends when `signal` fires.
 */
export function heldTree(
  parts: ServiceParts,
  image: ImageRow,
  signal: AbortSignal,
): { readonly tree: ImageTree; readonly held: Disposable } {
  const { files, held } = heldLayers(parts, image);
  return { tree: new ImageTree(files, sharedOpenLayers, readerOf(image.accountId, signal)), held };
}

/** Where layers are, in the order given. */
export function layerFiles({ layout }: ServiceParts, layers: readonly LayerRow[]): LayerFiles[] {
  return layers.map(({ id }) => ({ disk: layerPath(layout, id), index: indexPath(layout, id) }));
}
