import { type Static, Type } from "@sinclair/typebox";
import { UUID_PATTERN } from "../../../domain/ids.ts";
import { IMPORT_TIMEOUT_SECONDS_DEFAULT, IMPORT_TIMEOUT_SECONDS_MAX } from "../../../domain/image.ts";
import { flag, orNull, Page, Timestamp, Uuid } from "./common.ts";

/** Longest tag that may be set, in `characters`. */
const TAG_CHARACTERS_MAX = 256;

const TAG_ERROR =
  `tag must be 1 to ${TAG_CHARACTERS_MAX} characters: words of A-Z a-z 0-9 _ - between single : / or ., ` +
  "beginning with a letter or digit";

const Tag = Type.String({
  pattern: "^[A-Za-z0-9][A-Za-z0-9_-]*(?:[:/.][A-Za-z0-9_-]+)*$",
  maxLength: TAG_CHARACTERS_MAX,
  description: "tag name, unique per account",
  examples: ["registry.example.net:5000/team/tool:1.2"],
  error: TAG_ERROR,
});

/** A tag for the image of a result. */
export const OptionalTag = Type.Optional(orNull(Tag, { error: TAG_ERROR }));

/** An image, with one of its tags. */
export const Image = Type.Object({
  uuid: Uuid,
  tag: orNull(Type.String(), { description: "a tag of the image; null when it has none" }),
  created_at: Timestamp,
  operation_uuid: orNull(Uuid, { description: "operation that made the image; null when it has expired" }),
});
export type Image = Static<typeof Image>;

export const ImageList = Type.Object({ images: Type.Array(Image) });

/** `kind` of images in a query. */
export const IMAGE_KINDS = ["run", "import"] as const;

export const ImagesQuery = Type.Object({
  ...Page,
  tagged: Type.Optional(flag("tagged", "true: only images with a tag")),
  tag: Type.Optional(
    Type.String({ description: "only tags that begin with this; the tag that equals it comes first" }),
  ),
  uuid: Type.Optional(
    Type.String({ pattern: UUID_PATTERN, description: "only this image", error: "uuid must be a UUID" }),
  ),
  kind: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: IMAGE_KINDS.length - 1,
      description: "0: only images that runs made; 1: only imported ones",
      error: "kind must be 0 or 1",
    }),
  ),
});

export const SetTagRequest = Type.Object({ tag: Tag });

export const RemoveTagQuery = Type.Object({
  tag: Type.Optional(
    Type.String({ minLength: 1, description: "tag to remove; all by default", error: "tag must not be empty" }),
  ),
});

/** Response to a request that starts an import: the id of its operation. */
export const AcceptedImport = Type.Object({ uuid: Uuid });

const credential = (name: string, maxLength: number) =>
  Type.Optional(
    orNull(Type.String({ maxLength }), {
      description: `${name} for the registry`,
      error: `${name} must be a string of at most ${maxLength} characters`,
    }),
  );

export const ImportRequest = Type.Object({
  registry: Type.Object(
    {
      url: Type.String({
        minLength: 1,
        maxLength: 1024,
        description: "image in a registry: docker://HOST/PATH:TAG; without the scheme, and without the tag for latest",
        examples: ["docker://registry.example.net/library/busybox:1.36"],
        error: "url must be a string of 1 to 1024 characters",
      }),
      credentials: Type.Optional(
        orNull(Type.Object({ username: credential("username", 1024), password: credential("password", 65_536) }), {
          description: "credentials for the registry; empty ones are none",
          error: "credentials must be an object with the strings username and password, or null",
        }),
      ),
    },
    { error: "registry must be an object with a url" },
  ),
  tag: OptionalTag,
  timeout: Type.Optional(
    orNull(
      Type.Integer({
        minimum: 1,
        maximum: Number.MAX_SAFE_INTEGER,
        default: IMPORT_TIMEOUT_SECONDS_DEFAULT,
        description: `import time-out, in seconds; a longer one counts as ${IMPORT_TIMEOUT_SECONDS_MAX}`,
      }),
      { error: "timeout must be an integer of at least 1" },
    ),
  ),
});
export type ImportRequest = Static<typeof ImportRequest>;
