import type { ListingItem } from "../../../client/types.ts";
import { childOf, type EncodedPath } from "../paths.ts";

/** Largest number of entries that are searched one by one, for early matches and visible progress. */
const STEPS_MAX = 64;
/** Files of a directory per request: the API accepts 16 paths. */
const PATHS_MAX = 16;

export interface TextSearch {
  readonly image: string;
  readonly path: EncodedPath;
  /** in the syntax of RE2 */
  readonly pattern: string;
  /** only files whose names match; empty: all */
  readonly glob: string;
  readonly isCaseSensitive: boolean;
}

/**
 * The paths of each request of a search: a directory with few entries is searched entry by entry. Symlinks are left out, as a
 * search of the directory does.
 * @param items of the directory; null: the path is a file, or has too many entries
 */
export function searchSteps(
  { path, glob }: Pick<TextSearch, "path" | "glob">,
  items: readonly Pick<ListingItem, "name" | "name_base64" | "type">[] | null,
): EncodedPath[][] {
  // A glob with a slash is relative to the searched directory.
  if (items === null || items.length > STEPS_MAX || glob.includes("/")) return [[path]];
  const steps: EncodedPath[][] = [];
  let files: EncodedPath[] = [];
  for (const item of items) {
    if (item.type !== "directory" && item.type !== "file") continue;
    const isFull = files.length === PATHS_MAX;
    if (files.length > 0 && (isFull || item.type === "directory")) {
      steps.push(files);
      files = [];
    }
    if (item.type === "directory") steps.push([childOf(path, item)]);
    else files.push(childOf(path, item));
  }
  return files.length > 0 ? [...steps, files] : steps;
}

/** The glob for a typed name: any name that contains it, unless it is a glob or a path itself. */
export function globOf(text: string): string {
  const name = text.trim();
  return /[*?[\]{}!/]/.test(name) || name === "" ? name.replace(/^\/+/, "") : `*${name}*`;
}
