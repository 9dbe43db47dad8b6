import { getImage, type ImageRow } from "../../db/images/images.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, ImageId } from "../../domain/ids.ts";
import type { LayerChain } from "../../storage/layers/layer-store.ts";
import type { Cancellation } from "../../storage/pacer.ts";
import type { Principal, ServiceParts } from "../parts.ts";

/** Bytes that are produced while they are read. A chunk is valid only until the next one is requested. */
export interface ByteSource {
  readonly chunks: AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
  /** the source of the bytes; must be disposed when the last one was read, or reading has failed */
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

/** Identifies the reader of an image to the pacer: readers of one account take turns. Reading ends when `signal` fires. */
export function readerOf(accountId: AccountId, signal: AbortSignal): Cancellation {
  return { owner: `reader ${accountId}`, throwIfAborted: () => signal.throwIfAborted() };
}
