import { type Static, Type } from "@sinclair/typebox";
import { UUID_PATTERN } from "../../../domain/ids.ts";
import {
  IMPORT_TIMEOUT_SECONDS_DEFAULT,
  IMPORT_TIMEOUT_SECONDS_MAX,
  TAG_PATTERN,
  TAG_RULE,
} from "../../../domain/image.ts";
import { Timestamp, Uuid } from "./common.ts";

export const Tag = Type.String({
  pattern: TAG_PATTERN,
  description: "tag name, unique per account",
  error: `tag ${TAG_RULE}`,
});

/** Image on the wire. */
export const Image = Type.Object({
  uuid: Uuid,
  tag: Type.Optional(Type.String({ description: "absent when the image has no tag" })),
  created_at: Timestamp,
});
export type Image = Static<typeof Image>;

export const SetTagRequest = Type.Object({ tag: Tag });
export type SetTagRequest = Static<typeof SetTagRequest>;

export const ImportRequest = Type.Object({
  registry: Type.String({
    minLength: 1,
    maxLength: 1024,
    description: "registry image reference, <registry>/<repository>:<version> or <registry>/<repository>@<digest>",
    examples: ["registry.example.net/library/busybox:1.36"],
    error: "registry must be a string of 1 to 1024 characters",
  }),
  credentials: Type.Optional(
    Type.Object(
      {
        username: Type.String({ maxLength: 1024 }),
        password: Type.String({ maxLength: 65_536 }),
      },
      {
        description: "registry credentials; the password is never stored",
        error: "credentials must be an object with the strings username and password",
      },
    ),
  ),
  tag: Type.Optional(Tag),
  timeout: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: IMPORT_TIMEOUT_SECONDS_MAX,
      default: IMPORT_TIMEOUT_SECONDS_DEFAULT,
      description: "import time-out, in seconds",
      error: `timeout must be an integer from 1 to ${IMPORT_TIMEOUT_SECONDS_MAX}`,
    }),
  ),
});
export type ImportRequest = Static<typeof ImportRequest>;

/** Request to import an image from an archive that is an uploaded file. */
export const LoadRequest = Type.Object({
  file: Type.String({
    pattern: UUID_PATTERN,
    description: "uuid of an uploaded file: an OCI layout archive or a docker-archive with one image",
    error: "file must be the UUID of an uploaded file",
  }),
  tag: ImportRequest.properties.tag,
  timeout: ImportRequest.properties.timeout,
});
export type LoadRequest = Static<typeof LoadRequest>;
