import { ApiError } from "../../../domain/errors.ts";
import type { GuestEntry } from "../../../domain/tree/guest-file.ts";
import { displayName, type GuestPath, pathBelow } from "../../../domain/tree/guest-path.ts";
import type { FileRequest, WatchedEvent, Watching } from "../../../service/running/files.ts";
import type { E2bParts } from "../options.ts";
import { RpcError } from "../rpc/errors.ts";
import { type EntryInfo, entryInfo } from "./entry.ts";
import { type FilesPlace, fileAt } from "./place.ts";

/** The wire form of a message FilesystemEvent. */
export interface FilesystemEvent {
  /** relative to the watched directory, which itself is `.` */
  readonly name: string;
  readonly type: string;
  readonly entry?: EntryInfo;
}

/** Names of events. That of the new name of a renamed file is the creation of a file. */
const EVENT_TYPES: Readonly<Partial<Record<WatchedEvent["type"], string>>> = {
  create: "EVENT_TYPE_CREATE",
  rename_to: "EVENT_TYPE_CREATE",
  write: "EVENT_TYPE_WRITE",
  remove: "EVENT_TYPE_REMOVE",
  gone: "EVENT_TYPE_REMOVE",
  rename_from: "EVENT_TYPE_RENAME",
  chmod: "EVENT_TYPE_CHMOD",
};

export interface WatchFields {
  readonly path: string;
  readonly recursive: boolean;
  readonly includeEntry: boolean;
}

/** A watch of a directory. */
export interface DirectoryWatch extends Disposable, Pick<Watching, "sync"> {
  /** @throws RpcError `internal` when events were lost */
  readonly events: AsyncGenerator<FilesystemEvent, void, undefined>;
}

/**
 * Watches a directory until `signal` fires, or the watch is disposed of.
 * @throws RpcError `not_found`, `invalid_argument`; as `GuestFileUseCases.watch` does
 */
export async function watchDirectory(
  { service: { guestFiles } }: E2bParts,
  place: FilesPlace,
  { path, recursive, includeEntry }: WatchFields,
): Promise<DirectoryWatch> {
  const { principal } = place.envd;
  const directory = fileAt(place, path);
  const { type } = await guestFiles.stat(principal, { ...directory, follow: true });
  if (type !== "d") throw new RpcError("invalid_argument", `path ${displayName(directory.path)} not a directory`);
  const watching = await guestFiles.watch(principal, { ...directory, recursive, entries: includeEntry });
  const follow = async (file: GuestPath, entry: GuestEntry) =>
    entry.type === "l" ? await targetOf(guestFiles, principal, { ...directory, path: file }, entry) : entry;
  return {
    events: eventsOf(watching.items, directory.path, follow),
    sync: () => watching.sync(),
    [Symbol.dispose]: () => watching[Symbol.dispose](),
  };
}

async function* eventsOf(
  items: Watching["items"],
  directory: GuestPath,
  follow: (path: GuestPath, entry: GuestEntry) => Promise<GuestEntry>,
): AsyncGenerator<FilesystemEvent, void, undefined> {
  for await (const { type, path, entry } of items) {
    if (type === "overflow") throw new RpcError("internal", "watcher error: events were lost");
    const name = EVENT_TYPES[type];
    if (name === undefined) continue;
    const at = pathBelow(directory, path);
    yield {
      name: path === "" ? "." : displayName(path),
      type: name,
      ...(entry === null ? {} : { entry: entryInfo(await follow(at, entry), at) }),
    };
  }
}

/** The entry to which a symlink leads; the symlink itself when it is gone meanwhile, or the account has no room to look. */
async function targetOf(
  guestFiles: E2bParts["service"]["guestFiles"],
  principal: FilesPlace["envd"]["principal"],
  request: FileRequest,
  link: GuestEntry,
): Promise<GuestEntry> {
  return await guestFiles.stat(principal, { ...request, follow: true }).catch((error: unknown) => {
    if (error instanceof ApiError) return link;
    throw error;
  });
}
