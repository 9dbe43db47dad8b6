import type { Client } from "../../client/client.ts";
import { type FileAt, listFiles, readFile } from "../../client/guest-files.ts";
import type { Place } from "../../client/place.ts";
import type { GuestEntry } from "../../client/types.ts";
import { CliError, UsageError } from "../command.ts";
import type { CopySource, SourceItem } from "./copy-out.ts";

/** A path of what runs, as a person writes it: `NAME:PATH`, `ID:PATH` or `name:NAME:PATH`. */
export interface PlacePath {
  /** what `inPlace` takes */
  readonly place: string;
  /** absolute; relative ones begin at the root */
  readonly path: string;
}

/** No name has a slash, so that `./a:b` is a local file. */
const PLACE_PATH = /^((?:name:)?[^:/]+):(.*)$/s;

/** The path of what runs that a text names; null: it is a local file, or an image, which `tag:` begins. */
export function placePathOf(text: string): PlacePath | null {
  const [, place = "", path = ""] = PLACE_PATH.exec(text) ?? [];
  if (place === "" || place === "tag" || place === "name") return null;
  return { place, path: path.startsWith("/") ? path : `/${path}` };
}

/** @throws UsageError */
export function expectPlacePath(text: string): PlacePath {
  const at = placePathOf(text);
  if (at === null) throw new UsageError(`${JSON.stringify(text)} is not a path like NAME:/PATH or ID:/PATH`);
  return at;
}

export interface PlaceSourceOptions {
  readonly place: Place;
  readonly user: string | undefined;
}

/** The files of what runs, to be copied. */
export function placeSource(client: Client, options: PlaceSourceOptions): CopySource {
  const at = (path: FileAt["path"], signal: AbortSignal): FileAt => ({ ...options, path, signal });
  return {
    read: (path, signal) => readFile(client, at(path, signal)),
    list: async (path, signal) => {
      const items: SourceItem[] = [];
      let isFirst = true;
      for await (const entry of listFiles(client, at(path, signal))) {
        if (!isFirst) items.push(itemOf(entry));
        else if (entry.type !== "directory") throw new CliError(`${entry.path} is neither a file nor a directory`);
        isFirst = false;
      }
      return items;
    },
  };
}

function itemOf({ type, mtime, ...entry }: GuestEntry): SourceItem {
  return {
    ...entry,
    is_dir: type === "directory",
    is_symlink: type === "symlink",
    is_regular: type === "file",
    modified_at: mtime,
  };
}
