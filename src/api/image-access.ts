import { getImage, type ImageRow } from "../db/images.ts";
import { type LayerRow, layerChain } from "../db/layers.ts";
import { ApiError } from "../domain/errors.ts";
import { type ByteString, byteStringToBytes, displayName, isUtf8 } from "../domain/guest-path.ts";
import { type ImageId, isoTime } from "../domain/ids.ts";
import type { Image } from "../domain/image.ts";
import { ImageTree } from "../storage/image-tree.ts";
import { sharedLayerHolds } from "../storage/layer-holds.ts";
import { indexPath, layerPath } from "../storage/layers.ts";
import { type LayerFiles, sharedOpenLayers } from "../storage/open-layers.ts";
import type { ApiServices, Principal } from "./services.ts";

/** An image as the interface shows it. */
export function imageOf(row: ImageRow): Image {
  return { uuid: row.id, ...(row.tag === null ? {} : { tag: row.tag }), created_at: isoTime(row.createdAt) };
}

export function noSuchImage(id: string): ApiError {
  return new ApiError("not_found", "no such image", { uuid: id });
}

/** @throws ApiError `not_found` also for an image of another account */
export function requireImage(services: ApiServices, principal: Principal, id: string): ImageRow {
  const row = getImage(services.db, principal.accountId, id as ImageId);
  if (row === null) throw noSuchImage(id);
  return row;
}

/**
 * The merged file system of an image; nothing is booted or mounted. The layers stay until disposal, also when the image
 * is deleted, and what is done with the tree ends when the client has gone, which `client` tells.
 */
export function heldTreeOf(
  services: ApiServices,
  image: ImageRow,
  client: AbortSignal,
): { readonly tree: ImageTree; readonly held: Disposable } {
  const layers = layerChain(services.db, image.layerId);
  const held = sharedLayerHolds.hold(layers.map(({ id }) => id));
  return { tree: new ImageTree(layerFiles(services, layers), sharedOpenLayers, client), held };
}

/** Where layers are, in the order given. */
export function layerFiles(services: ApiServices, layers: readonly LayerRow[]): LayerFiles[] {
  const { layout } = services;
  return layers.map(({ id }) => ({ disk: layerPath(layout, id), index: indexPath(layout, id) }));
}

/** A path as JSON can hold it: what is not UTF-8 comes as bytes, too. */
export function pathFields(path: ByteString): { path: string; path_base64?: string } {
  const bytes = isUtf8(path) ? {} : { path_base64: byteStringToBytes(path).toString("base64") };
  return { path: displayName(path), ...bytes };
}
