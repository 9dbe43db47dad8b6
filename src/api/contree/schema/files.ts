import { type Static, Type } from "@sinclair/typebox";
import { SHA256_PATTERN } from "../../../domain/file.ts";
import { UUID_PATTERN } from "../../../domain/ids.ts";
import { Page, Timestamp, Uuid } from "./common.ts";

/** Result of an upload. */
export const UploadedFile = Type.Object({
  uuid: Uuid,
  sha256: Type.String({ pattern: SHA256_PATTERN, description: "lower-case hexadecimal SHA-256 of the content" }),
  size: Type.Integer({ description: "size of the content, in bytes" }),
});

export const File = Type.Object({
  ...UploadedFile.properties,
  created_at: Timestamp,
  updated_at: Timestamp,
});
export type File = Static<typeof File>;

export const FileList = Type.Object({ files: Type.Array(File) });

/** Query of the listing; with `uuid` or `sha256` it finds one file instead. */
export const FilesQuery = Type.Object({
  ...Page,
  uuid: Type.Optional(
    Type.String({ pattern: UUID_PATTERN, description: "the file with this UUID", error: "uuid must be a UUID" }),
  ),
  sha256: Type.Optional(
    Type.String({
      pattern: "^[0-9a-fA-F]{64}$",
      description: "the file whose content has this hash",
      error: "sha256 must be 64 hexadecimal digits",
    }),
  ),
});
