import { type Static, Type } from "@sinclair/typebox";
import type { ByteString } from "../../../domain/tree/guest-path.ts";
import { BYTES_KEYWORD } from "../../query.ts";
import { flag } from "./common.ts";

/** A path in a query: its bytes, percent-decoded, need not be UTF-8. */
const Path = (description: string) =>
  Type.Unsafe<ByteString>(
    Type.String({ description, examples: ["/etc"], [BYTES_KEYWORD]: true, error: "path must be given once" }),
  );

export const InspectByTagQuery = Type.Object({
  tag: Type.String({ minLength: 1, description: "tag of the image", error: "tag must be a tag name" }),
});

export const ListQuery = Type.Object({
  path: Path("absolute path of the directory"),
  text: Type.Optional(flag("text", "true: plain text in the style of ls")),
});

export const DownloadQuery = Type.Object({
  path: Path("absolute path of the file"),
  text: Type.Optional(flag("text", "true: the content type is text/plain")),
});

export const ArchiveQuery = Type.Object({ path: Path("absolute path of the directory or file") });

const owner = (description: string) => Type.Integer({ description });

/** An entry of a directory. */
export const FileItem = Type.Object({
  path: Type.String({ description: "name of the entry; U+FFFD replaces bytes that are not UTF-8" }),
  size: Type.Integer({ description: "size, in bytes" }),
  owner: owner("the same as uid: nothing in the image is read to find a name"),
  group: owner("the same as gid"),
  uid: owner("id of the owner"),
  gid: owner("id of the group"),
  mode: Type.Integer({ description: "type and permission bits, such as 33188 of a regular file with 0644" }),
  mtime: Type.Integer({ description: "modification time, in seconds since the epoch" }),
  nlink: Type.Integer({ description: "number of hard links" }),
  is_dir: Type.Boolean(),
  is_regular: Type.Boolean(),
  is_symlink: Type.Boolean(),
  is_socket: Type.Boolean(),
  is_fifo: Type.Boolean(),
  symlink_to: Type.String({ description: "target of a symlink, otherwise empty" }),
});
export type FileItem = Static<typeof FileItem>;

export const DirectoryList = Type.Object({
  path: Type.String({ description: "the path of the request" }),
  files: Type.Array(FileItem),
});
