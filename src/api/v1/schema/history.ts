import { type Static, Type } from "@sinclair/typebox";
import { DIFF_CHANGES } from "../../../domain/image.ts";
import { oneOf } from "../../wire-fields.ts";
import { Reference, Timestamp } from "./common.ts";
import { Image } from "./images.ts";
import { EntryTypeName } from "./inspection.ts";
import { OperationKindSchema } from "./operations.ts";

/** An image with its parent and size. */
export const ImageDetails = Type.Object({
  ...Image.properties,
  parent: Type.Optional(Reference("the image from which it was made, which may be deleted; absent when imported")),
  size_bytes: Type.Integer({ description: "disk space that the image added to its parent, in bytes" }),
  digest: Type.Optional(Type.String({ description: "manifest digest of an imported image" })),
});
export type ImageDetails = Static<typeof ImageDetails>;

/** A step of a lineage: an image and the operation that made it. */
export const ImageStep = Type.Object({
  ...ImageDetails.properties,
  deleted: Type.Boolean({ description: "true: the image is deleted, but an image that was made from it is not" }),
  operation: Reference("the operation that made it, which may have expired"),
  kind: OperationKindSchema,
  source: Type.Optional(Type.String({ description: "reference that was imported" })),
  command: Type.Optional(
    Type.Array(Type.String(), {
      description: "the command that ran, or was running, with its arguments; env and stdin are not stored",
    }),
  ),
  command_truncated: Type.Optional(Type.Boolean({ description: "true: the last arguments were left out" })),
  exit_code: Type.Optional(Type.Integer()),
  timed_out: Type.Optional(Type.Boolean()),
  network: Type.Optional(Type.Boolean({ description: "true: the command had a network" })),
  started_at: Type.Optional(Timestamp),
});
export type ImageStep = Static<typeof ImageStep>;

const Size = (description: string) => Type.Optional(Type.Integer({ description }));

/** Further fields of an entry in one of two images. */
function sideFields<Prefix extends "" | "previous_">(prefix: Prefix, where: string) {
  const fields = {
    mode: Type.Optional(Type.String({ pattern: "^[0-7]{4}$", description: `permission bits in octal ${where}` })),
    uid: Type.Optional(Type.Integer({ description: `owner ${where}` })),
    gid: Type.Optional(Type.Integer({ description: `group ${where}` })),
    modified_at: Type.Optional(Timestamp),
    symlink_to: Type.Optional(Type.String({ description: "target of a symlink; U+FFFD as in the path" })),
    symlink_to_base64: Type.Optional(
      Type.String({ description: "the target's bytes, present when they are not UTF-8" }),
    ),
  };
  type Fields = typeof fields;
  return Object.fromEntries(Object.entries(fields).map(([name, schema]) => [prefix + name, schema])) as {
    [Name in keyof Fields & string as `${Prefix}${Name}`]: Fields[Name];
  };
}

/** A path at which two images differ. */
export const DiffItem = Type.Object({
  path: Type.String({ description: "path; U+FFFD stands for bytes that are not UTF-8" }),
  path_base64: Type.Optional(Type.String({ description: "the path's bytes, present when they are not UTF-8" })),
  change: oneOf(DIFF_CHANGES),
  type: EntryTypeName,
  size_bytes: Size("size in the image; absent when removed"),
  previous_type: Type.Optional(EntryTypeName),
  previous_size_bytes: Size("size in the other image; absent when added"),
  ...sideFields("", "in the image, on request; absent when removed"),
  ...sideFields("previous_", "in the other image, on request; absent when added"),
});
export type DiffItem = Static<typeof DiffItem>;

export const ImageDiff = Type.Object({
  uuid: Reference("the image"),
  against: Type.Optional(Reference("the image that it is compared with; absent: an empty image")),
  items: Type.Array(DiffItem),
  next: Type.Optional(Type.String({ description: "cursor of the next page; absent on the last one" })),
});
export type ImageDiff = Static<typeof ImageDiff>;
