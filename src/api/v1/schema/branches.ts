import { type Static, Type } from "@sinclair/typebox";
import { Reference, Timestamp, Uuid } from "./common.ts";
import { Image } from "./images.ts";
import { OperationKindSchema, OperationStatusSchema } from "./operations.ts";

const About = (description: string) =>
  Type.Optional(Type.String({ description: `${description}, in one line of at most 80 characters` }));

/** An image as a node of the branches. */
export const BranchImage = Type.Object({
  type: Type.Literal("image"),
  ...Image.properties,
  parent: Type.Optional(Reference("its nearest ancestor that still exists; absent when there is none")),
  skipped: Type.Optional(
    Type.Integer({ minimum: 1, description: "number of deleted images between it and its parent, or above a root" }),
  ),
  size_bytes: Type.Integer({ description: "disk space that the image added to its parent, in bytes" }),
  kind: OperationKindSchema,
  operation: Reference("the operation that made it, which may have expired"),
  about: About("the command that ran, or the reference that was imported"),
  exit_code: Type.Optional(Type.Integer()),
  timed_out: Type.Optional(
    Type.Boolean({ description: "present and true when the time limit of the command was hit" }),
  ),
  network: Type.Optional(Type.Boolean({ description: "present and true when the command had a network" })),
});
export type BranchImage = Static<typeof BranchImage>;

/** An operation that will add an image to the branches. */
export const BranchOperation = Type.Object({
  type: Type.Literal("operation"),
  uuid: Uuid,
  kind: OperationKindSchema,
  status: OperationStatusSchema,
  image: Type.Optional(Reference("the image on which it runs; absent for an import, and when the image is deleted")),
  about: About("what it does"),
  created_at: Timestamp,
  started_at: Type.Optional(Timestamp),
  finished_at: Type.Optional(Timestamp),
  result: Type.Optional(Reference("the image that it made; the one it started from when nothing changed")),
});
export type BranchOperation = Static<typeof BranchOperation>;

/** The last row. */
export const BranchesEnd = Type.Object({
  type: Type.Literal("end"),
  older: Type.Boolean({ description: "true: there are older images than those of the answer" }),
});

/** A row of the branches, tagged by `type`. */
export const BranchRow = Type.Union([BranchOperation, BranchImage, BranchesEnd], {
  discriminator: { propertyName: "type" },
});
export type BranchRow = Static<typeof BranchRow>;

/** The effects of deleting an image. */
export const ImageDeletion = Type.Object({
  uuid: Reference("the image"),
  size_bytes: Type.Integer({
    description: "disk space of the layers that no other image of the account needs, in bytes",
  }),
  layers: Type.Integer({ description: "number of layers that would be removed" }),
  children: Type.Integer({ description: "number of images that were made directly from it; they stay" }),
  tags: Type.Array(Type.String(), { description: "tags that would be removed" }),
  in_use: Type.Boolean({
    description: "true: an instance that waits or runs uses it, so that it cannot be deleted now",
  }),
});
export type ImageDeletion = Static<typeof ImageDeletion>;
