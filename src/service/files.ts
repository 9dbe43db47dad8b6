import { type FileRow, getFile, listFiles, upsertFile } from "../db/files.ts";
import { ApiError } from "../domain/errors.ts";
import type { FileId } from "../domain/ids.ts";
import { timeBounds } from "../domain/text/time-bound.ts";
import { receiveBlob } from "../storage/blobs.ts";
import { withSpaceChecks } from "../storage/free-space.ts";
import { type Changed, change } from "./change.ts";
import type { ListRequest, Principal, ServiceParts } from "./parts.ts";

/** An uploaded file. Times are `milliseconds` since the epoch; `uploadedAt` is the last upload of the same content. */
export type File = Pick<FileRow, "id" | "sha256" | "sizeBytes" | "createdAt" | "uploadedAt">;

export interface Upload {
  /** length that the client announced, in `bytes`; 0 if it announced none */
  readonly announcedBytes: number;
  readonly content: AsyncIterable<Uint8Array>;
}

/** Names a file by its UUID, its hash, or both, which must then agree. */
export interface FileReference {
  readonly uuid?: string | undefined;
  readonly sha256?: string | undefined;
}

export interface FileUseCases {
  /**
   * Stores a file. Within an account, the same content is the same file.
   * @throws ApiError `payload_too_large`, before the body is read when its length is announced; `insufficient_storage`
   */
  upload(principal: Principal, upload: Upload): Promise<Changed<File>>;
  /**
   * Lists files, the last uploaded first. The time bounds of the request apply to the last upload.
   * @throws ApiError `validation_error` when a time bound is malformed; as `Scans.all` does
   */
  list(principal: Principal, request: ListRequest): Promise<readonly File[]>;
  /** @throws ApiError `not_found` */
  get(principal: Principal, reference: FileReference): File;
}

export function fileUseCases(parts: ServiceParts): FileUseCases {
  const { db, layout, limits, clock } = parts;
  return {
    async upload(principal, { announcedBytes, content }) {
      const { accountId } = principal;
      const { fileBytesMax, diskReserveBytes } = limits;
      if (announcedBytes > fileBytesMax) {
        const details = { limit_bytes: fileBytesMax };
        throw new ApiError("payload_too_large", `the body must be at most ${fileBytesMax} bytes`, details);
      }
      const source = withSpaceChecks(content, layout.root, diskReserveBytes);
      const stored = () =>
        receiveBlob(layout, source, fileBytesMax, (blob) => upsertFile(db, { accountId, ...blob, now: clock() }));
      return await change(parts, principal, { noun: "file", verb: "upload", id: ({ id }) => id }, stored);
    },
    async list({ accountId }, { limit, offset, signal, ...times }) {
      return await listFiles(db, accountId, { limit, offset, signal, ...timeBounds(times, clock()) });
    },
    get({ accountId }, reference) {
      const uuid = reference.uuid?.toLowerCase() as FileId | undefined;
      const row = getFile(db, accountId, { uuid, sha256: reference.sha256 });
      if (row === null) throw new ApiError("not_found", "no such file", { ...reference });
      return row;
    },
  };
}
