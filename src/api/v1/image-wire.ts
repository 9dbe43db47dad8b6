import { given } from "../../domain/given.ts";
import { isoTime } from "../../domain/ids.ts";
import { type ByteString, byteStringToBytes, displayName, isUtf8 } from "../../domain/tree/guest-path.ts";
import type { Image as StoredImage } from "../../service/images.ts";
import type { Image } from "./schema/images.ts";

/** The wire form of an image. */
export function imageOf({ id, tag, createdAt }: StoredImage): Image {
  return { uuid: id, ...given({ tag }), created_at: isoTime(createdAt) };
}

/** The wire form of a path. One that is not UTF-8 has its bytes, too. */
export function pathFields(path: ByteString): { path: string; path_base64?: string } {
  const bytes = isUtf8(path) ? {} : { path_base64: byteStringToBytes(path).toString("base64") };
  return { path: displayName(path), ...bytes };
}

/** The stored facts about the operation that made an image. */
interface Making {
  readonly isImport: boolean;
  readonly exitCode: number | null;
  readonly timedOut: boolean;
}

/** The kind of the operation that made an image. A checkpoint stores the command of an instance that had not ended. */
export function makingKind({ isImport, exitCode, timedOut }: Making): "image_import" | "instance" | "checkpoint" {
  if (isImport) return "image_import";
  return exitCode === null && !timedOut ? "checkpoint" : "instance";
}
