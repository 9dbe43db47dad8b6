import { type Static, Type } from "@sinclair/typebox";
import { GUEST_FILE_EVENTS, JOINED_FILES_COUNT_MAX, LIST_DEPTH_MAX } from "../../../domain/tree/guest-file.ts";
import { ANY_KEY, OWNER_MAX, oneOf } from "../../wire-fields.ts";
import { EntryTypeName } from "./inspection.ts";
import { flag, Path } from "./query.ts";

/** Largest number of entries of one listing. */
const LIST_LIMIT_MAX = 1_000_000;

const User = Type.Optional(
  Type.String({
    description:
      "in whose name: a user of the guest by name or number, optionally with `:` and a group; root by default",
    examples: ["node", "1000:1000"],
    error: "user must be a text",
  }),
);

const ModeText = Type.String({
  pattern: "^[0-7]{3,4}$",
  description: "octal permissions",
  examples: ["0644"],
  error: "mode must be three or four octal digits",
});

const ownerId = (name: "uid" | "gid", what: string) =>
  Type.Integer({
    minimum: 0,
    maximum: OWNER_MAX,
    description: `${what}; uid and gid go together`,
    error: `${name} must be an integer from 0 to ${OWNER_MAX}`,
  });

/** An owner that is set. Both fields, or none. */
const OWNER_FIELDS = {
  uid: Type.Optional(ownerId("uid", "user id of the owner")),
  gid: Type.Optional(ownerId("gid", "group id of the owner")),
};

/** An entry of a running instance's file system. */
export const GuestEntry = Type.Object({
  path: Type.String({ description: "absolute path; U+FFFD stands for bytes that are not UTF-8" }),
  path_base64: Type.Optional(Type.String({ description: "the path's bytes, present when they are not UTF-8" })),
  name: Type.String({ description: "last part of the path; empty for the root" }),
  name_base64: Type.Optional(Type.String({ description: "the name's bytes, present when they are not UTF-8" })),
  type: EntryTypeName,
  mode: Type.String({ pattern: "^[0-7]{4}$", description: "permission bits as four octal digits" }),
  size: Type.Integer(),
  uid: Type.Integer(),
  gid: Type.Integer(),
  user: Type.Optional(Type.String({ description: "name of the owner in the guest's passwd" })),
  group: Type.Optional(Type.String({ description: "name of the owning group in the guest's group file" })),
  links: Type.Integer({ description: "number of hard links" }),
  mtime: Type.String({
    format: "date-time",
    description: "modification time, ISO 8601 in UTC with nanoseconds",
    examples: ["2026-11-20T10:30:00.000000000Z"],
  }),
  symlink_to: Type.Optional(
    Type.String({
      description:
        "text of a symlink; when it was followed, the absolute path of what it leads to, which the other fields are about",
    }),
  ),
  symlink_to_base64: Type.Optional(Type.String({ description: "the target's bytes, present when they are not UTF-8" })),
  attributes: Type.Optional(
    Type.Record(Type.String(), Type.String(), { description: "extended attributes user.*, if they are UTF-8" }),
  ),
});
export type GuestEntry = Static<typeof GuestEntry>;

/** A change below a watched directory. */
export const GuestFileEvent = Type.Object({
  type: oneOf(GUEST_FILE_EVENTS),
  path: Type.String({ description: "absolute path; U+FFFD stands for bytes that are not UTF-8" }),
  path_base64: Type.Optional(Type.String({ description: "the path's bytes, present when they are not UTF-8" })),
  cookie: Type.Optional(Type.Integer({ description: "the same in both events of one rename" })),
  entry: Type.Optional(GuestEntry),
});
export type GuestFileEvent = Static<typeof GuestFileEvent>;

export const FileQuery = Type.Object({ path: Path("absolute path of the file"), user: User });

export const StatQuery = Type.Object({
  path: Path("absolute path"),
  user: User,
  follow: Type.Optional(flag("follow", "false: a final symlink is not followed; true by default")),
});

export const ListFilesQuery = Type.Object({
  path: Path("absolute path; if it is a symlink, it is followed"),
  user: User,
  follow: Type.Optional(flag("follow", "true: symlinks in the listing are described by what they lead to")),
  depth: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: LIST_DEPTH_MAX,
      default: 1,
      description: "levels below the path; 0: the path alone",
      error: `depth must be an integer from 0 to ${LIST_DEPTH_MAX}`,
    }),
  ),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: LIST_LIMIT_MAX,
      description: "number of entries; all by default",
      error: `limit must be an integer from 1 to ${LIST_LIMIT_MAX}`,
    }),
  ),
});

export const WriteQuery = Type.Object({
  path: Path("absolute path of the file"),
  user: User,
  mode: Type.Optional(ModeText),
  ...OWNER_FIELDS,
  parents: Type.Optional(flag("parents", "false: the directories above must exist; true by default")),
  atomic: Type.Optional(flag("atomic", "true: the file appears when it is complete, as a new file")),
  append: Type.Optional(flag("append", "true: the bytes are added at the end")),
});

export const RemoveQuery = Type.Object({
  path: Path("absolute path"),
  user: User,
  recursive: Type.Optional(flag("recursive", "true: a directory with all that is in it")),
});

export const WatchQuery = Type.Object({
  path: Path("absolute path of the directory"),
  user: User,
  recursive: Type.Optional(flag("recursive", "true: also the directories below")),
  entries: Type.Optional(flag("entries", "true: each event has the entry as it is now, if it exists")),
});

/** A path in a body: text, or its bytes. */
const pathText = (what: string) => Type.Optional(Type.String({ description: `${what}, absolute` }));
const pathBytes = Type.Optional(Type.String({ description: "the path's bytes in base64, when they are not UTF-8" }));

const AttributeChanges = Type.Optional(
  Type.Record(ANY_KEY, Type.Union([Type.String(), Type.Null()], { error: "an attribute must be a text or null" }), {
    description: "extended attributes user.* by name; null removes one",
    error: "attributes must be an object of texts",
  }),
);

export const MoveRequest = Type.Object({
  from: pathText("path to move"),
  from_base64: pathBytes,
  to: pathText("its new path"),
  to_base64: pathBytes,
  user: User,
  replace: Type.Optional(
    Type.Boolean({ description: "true: a file that exists is replaced", error: "replace must be true or false" }),
  ),
});

export const DirectoryRequest = Type.Object({
  path: pathText("path of the directory"),
  path_base64: pathBytes,
  user: User,
  mode: Type.Optional(ModeText),
  ...OWNER_FIELDS,
  parents: Type.Optional(
    Type.Boolean({
      description: "false: the directories above must exist; true by default",
      error: "parents must be true or false",
    }),
  ),
});

export const JoinRequest = Type.Object({
  from: Type.Array(Type.String(), {
    minItems: 1,
    maxItems: JOINED_FILES_COUNT_MAX,
    description: "absolute paths of the files, whose contents are joined in this order; they stay",
    error: `from must be an array of 1 to ${JOINED_FILES_COUNT_MAX} paths`,
  }),
  to: pathText("path of the new file"),
  to_base64: pathBytes,
  user: User,
  mode: Type.Optional(ModeText),
  ...OWNER_FIELDS,
});

export const ChangeRequest = Type.Object({
  path: pathText("path"),
  path_base64: pathBytes,
  user: User,
  mode: Type.Optional(ModeText),
  ...OWNER_FIELDS,
  attributes: AttributeChanges,
});

export const ChangedEntry = Type.Object({ entry: GuestEntry });
export const MadeDirectory = Type.Object({
  entry: GuestEntry,
  created: Type.Boolean({ description: "false: the directory existed" }),
});
