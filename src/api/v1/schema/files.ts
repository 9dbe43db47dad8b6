import { type Static, Type } from "@sinclair/typebox";
import { SHA256_PATTERN } from "../../../domain/file.ts";
import { Timestamp, Uuid } from "./common.ts";

/** Upload result. */
export const UploadedFile = Type.Object({
  uuid: Uuid,
  sha256: Type.String({ pattern: SHA256_PATTERN, description: "lower-case hexadecimal SHA-256 of the content" }),
});
export type UploadedFile = Static<typeof UploadedFile>;

/** A file. */
export const FileResponse = Type.Object({
  ...UploadedFile.properties,
  size_bytes: Type.Integer({ description: "size of the content, in bytes" }),
  created_at: Timestamp,
});
export type FileResponse = Static<typeof FileResponse>;
