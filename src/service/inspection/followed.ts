import { ApiError } from "../../domain/errors.ts";
import { type GuestPath, pathBelow } from "../../domain/tree/guest-path.ts";
import type { Entry } from "../../domain/tree/listing.ts";
import type { ImageTree } from "../../storage/tree/image-tree.ts";

/** An entry with its path in the image, without links. */
export interface FollowedEntry extends Entry {
  readonly path: GuestPath;
}

/**
 * The directories and regular files of a listing. A link has the place of what it leads to; one that leads nowhere, or to a
 * directory above it, is left out: for programs that know no links, the tree would have no end.
 */
export async function* followed(
  tree: Pick<ImageTree, "stat">,
  directory: GuestPath,
  entries: AsyncIterable<Entry> | Iterable<Entry>,
): AsyncGenerator<FollowedEntry, void, undefined> {
  const { path: own } = await tree.stat(directory, { follow: true });
  for await (const entry of entries) {
    const path = pathBelow(own, entry.name);
    if (entry.type === "d" || entry.type === "f") yield { ...entry, path };
    if (entry.type !== "l") continue;
    const target = await targetOf(tree, path);
    if (target === null || (target.type === "d" && isAtOrAbove(target.path, own))) continue;
    if (target.type === "d" || target.type === "f") yield { ...target, name: entry.name };
  }
}

async function targetOf(tree: Pick<ImageTree, "stat">, path: GuestPath) {
  try {
    return await tree.stat(path, { follow: true });
  } catch (error) {
    // It leads nowhere, or in a circle.
    if (error instanceof ApiError && (error.code === "not_found" || error.code === "invalid_path")) return null;
    throw error;
  }
}

function isAtOrAbove(path: GuestPath, other: GuestPath): boolean {
  return path === "/" || path === other || other.startsWith(`${path}/`);
}
