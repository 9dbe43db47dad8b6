import { isoTime } from "../../domain/ids.ts";
import type { Image as StoredImage } from "../../service/images.ts";
import type { Image } from "./schema/images.ts";

/** The wire form of an image. */
export function imageOf({ id, tag, createdAt, operationId }: StoredImage): Image {
  return { uuid: id, tag, created_at: isoTime(createdAt), operation_uuid: operationId };
}
