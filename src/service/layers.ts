import { getImage, type ImageRow } from "../db/images.ts";
import { ApiError } from "../domain/errors.ts";
import type { AccountId, ImageId } from "../domain/ids.ts";
import type { LayerChain } from "../storage/layers/layer-store.ts";
import type { Wanted } from "../storage/pacer.ts";
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

/** The layers of an image. @throws ApiError `not_found` also for an image of another account */
export function imageLayers(parts: ServiceParts, principal: Principal, id: ImageId): LayerChain {
  return parts.layers.open(requireImage(parts, principal, id).layerId);
}

/** Somebody who looks into images as long as `signal` does not fire: all who do so for one account take turns. */
export function readerOf(accountId: AccountId, signal: AbortSignal): Wanted {
  return { owner: `reader ${accountId}`, throwIfAborted: () => signal.throwIfAborted() };
}
