import { type Static, Type } from "@sinclair/typebox";
import { PATH_CHANGE_KINDS } from "../../../domain/tree/path-history.ts";
import { Limit, oneOf } from "../../wire-fields.ts";
import { Reference, Timestamp } from "./common.ts";
import { ImageStep } from "./history.ts";
import { EntryTypeName } from "./inspection.ts";
import { Path } from "./query.ts";

const cursor = (pattern: string) =>
  Type.Optional(
    Type.String({
      pattern,
      description: "start of the page: `next` of the previous page",
      error: "cursor must be the `next` of a previous page",
    }),
  );
const Next = Type.Optional(Type.String({ description: "cursor of the next page; absent on the last one" }));
const PATH = "absolute path; a symlink on the way is followed, one at its end is not";

/** Query of the log of a path. */
export const PathLogQuery = Type.Object({
  path: Path(PATH),
  limit: Type.Optional(Limit),
  cursor: cursor("^(0|[1-9][0-9]{0,8})$"),
});

/** Query of a blame. */
export const BlameQuery = Type.Object({
  path: Path(PATH),
  limit: Type.Optional(Limit),
  cursor: cursor("^[A-Za-z0-9_-]{1,400}$"),
});

const pathFields = {
  path: Type.String({
    description: "the path without symlinks on the way; U+FFFD stands for bytes that are not UTF-8",
  }),
  path_base64: Type.Optional(Type.String({ description: "the path's bytes, present when they are not UTF-8" })),
};

const changeFields = {
  change: oneOf(PATH_CHANGE_KINDS, {
    description:
      "modified: its content or metadata; replaced: by an entry of another type, or a directory by a new one of its name",
  }),
  below: Type.Optional(
    Type.Boolean({ description: "true: not the directory itself, but something in it or below it was changed" }),
  ),
  previous_type: Type.Optional(EntryTypeName),
  previous_size_bytes: Type.Optional(Type.Integer({ description: "size before the change; absent when added" })),
  previous_mode: Type.Optional(Type.String({ pattern: "^[0-7]{4}$", description: "mode before the change" })),
  unknown_steps: Type.Optional(
    Type.Integer({
      minimum: 1,
      description:
        "number of deleted states directly before this one, whose files are not kept: the step of one of them, and not " +
        "this one, may have made the change",
    }),
  ),
};

/** A change of a path, and the step that made it. */
export const PathLogItem = Type.Object({
  ...changeFields,
  type: EntryTypeName,
  size_bytes: Type.Optional(Type.Integer({ description: "size after the change; absent when removed" })),
  mode: Type.Optional(
    Type.String({ pattern: "^[0-7]{4}$", description: "mode after the change; absent when removed" }),
  ),
  modified_at: Type.Optional(Timestamp),
  step: ImageStep,
});
export type PathLogItem = Static<typeof PathLogItem>;

export const PathLog = Type.Object({
  uuid: Reference("the image"),
  ...pathFields,
  items: Type.Array(PathLogItem, {
    description: "the newest first; a page that ran out of time is short, and has a next",
  }),
  next: Next,
});
export type PathLog = Static<typeof PathLog>;

/** An entry, and the image whose making changed it last. */
export const BlameItem = Type.Object({
  name: Type.String({ description: "name of the entry; U+FFFD stands for bytes that are not UTF-8" }),
  name_base64: Type.Optional(Type.String({ description: "the name's bytes, present when they are not UTF-8" })),
  type: EntryTypeName,
  size_bytes: Type.Integer(),
  mode: Type.String({ pattern: "^[0-7]{4}$" }),
  modified_at: Timestamp,
  image: Type.Optional(Reference("the image, one of `steps`; absent: the search has reached its limit of time")),
  change: Type.Optional(changeFields.change),
  below: changeFields.below,
  unknown_steps: changeFields.unknown_steps,
});
export type BlameItem = Static<typeof BlameItem>;

export const Blame = Type.Object({
  uuid: Reference("the image"),
  ...pathFields,
  type: EntryTypeName,
  items: Type.Array(BlameItem, {
    description: "the entries of a directory, by the bytes of their names; for any other path, the entry itself",
  }),
  steps: Type.Array(ImageStep, { description: "the steps of the items, the newest first" }),
  next: Next,
});
export type Blame = Static<typeof Blame>;
