import { given } from "../../domain/given.ts";
import { isoTime } from "../../domain/ids.ts";
import { type ByteString, byteStringToBytes, displayName, isUtf8 } from "../../domain/tree/guest-path.ts";
import type { Image as StoredImage, ImageStep as StoredStep } from "../../service/images.ts";
import type { ImageStep } from "./schema/history.ts";
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

/** The wire form of a step of a lineage. */
export function stepOf(row: StoredStep): ImageStep {
  const kind = makingKind({ ...row, isImport: row.command === null && row.parentId === null });
  return {
    uuid: row.imageId,
    ...given({ tag: row.tag }),
    created_at: isoTime(row.createdAt),
    ...given({ parent: row.parentId }),
    size_bytes: row.sizeBytes,
    ...given({ digest: row.digest }),
    deleted: !row.exists,
    operation: row.operationId,
    kind,
    ...given({ source: row.source }),
    ...(row.command === null ? {} : { command: [...row.command] }),
    ...(row.commandCut ? { command_truncated: true } : {}),
    ...given({ exit_code: row.exitCode }),
    ...(kind === "instance" ? { timed_out: row.timedOut } : {}),
    ...(row.network ? { network: true } : {}),
    ...(row.startedAt === null ? {} : { started_at: isoTime(row.startedAt) }),
  };
}
