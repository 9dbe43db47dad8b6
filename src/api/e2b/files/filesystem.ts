import { ApiError } from "../../../domain/errors.ts";
import { LIST_DEPTH_MAX } from "../../../domain/tree/guest-file.ts";
import { displayName, pathBelow } from "../../../domain/tree/guest-path.ts";
import type { FileRequest } from "../../../service/running/files.ts";
import type { E2bParts } from "../options.ts";
import type { RpcCall, StreamMethod, UnaryMethod } from "../rpc/connect.ts";
import { RpcError } from "../rpc/errors.ts";
import { flag, type RpcMessage, text, uint32 } from "../rpc/message.ts";
import { type EntryInfo, entryInfo } from "./entry.ts";
import { watchDirectory } from "./events.ts";
import { type FilesPlace, fileAt, placeOf, unlessMissing } from "./place.ts";
import { userNameIn } from "./users.ts";
import { Watchers } from "./watchers.ts";

/** Limits of one listing, whose answer is one message. */
const ENTRIES_COUNT_MAX = 50_000;
const ENTRIES_BYTES_MAX = 16_777_216;
/** Its bytes are counted in such steps. */
const ROOM_STEP_BYTES = 65_536;

/** The methods of the service filesystem.Filesystem, by their names. */
export interface FilesystemMethods {
  readonly unary: Readonly<Record<string, UnaryMethod>>;
  readonly watchDir: StreamMethod;
}

/** The methods for all sandboxes. */
export function filesystemMethods(parts: E2bParts): FilesystemMethods {
  return {
    unary: { ...entryMethods(parts), ...watcherMethods(parts) },
    async watchDir(call, send) {
      const place = await placeIn(parts, call);
      using watch = await watchDirectory(parts, place, watchFieldsIn(call.message));
      await send({ start: {} });
      for await (const filesystem of watch.events) await send({ filesystem });
    },
  };
}

async function placeIn(parts: E2bParts, { request, signal }: RpcCall): Promise<FilesPlace> {
  return { ...(await placeOf(parts, request, userNameIn(request.headers))), signal };
}

function watchFieldsIn(message: RpcMessage) {
  const [recursive, includeEntry] = [flag(message, "recursive"), flag(message, "includeEntry")];
  return { path: text(message, "path"), recursive, includeEntry };
}

function entryMethods(parts: E2bParts): Record<string, UnaryMethod> {
  const { guestFiles } = parts.service;
  const entryAt = async ({ envd }: FilesPlace, file: FileRequest) =>
    entryInfo(await guestFiles.stat(envd.principal, { ...file, follow: true }), file.path);
  return {
    async Stat(call) {
      const place = await placeIn(parts, call);
      return { entry: await entryAt(place, fileAt(place, text(call.message, "path"))) };
    },
    async MakeDir(call) {
      const place = await placeIn(parts, call);
      const file = fileAt(place, text(call.message, "path"));
      const { principal } = place.envd;
      const options = { ...file, owner: place.owner, parents: true };
      const { entry, created } = await guestFiles.makeDirectory(principal, options).catch(notDirectory(file));
      if (created) return { entry: entryInfo(entry, file.path) };
      throw new RpcError("already_exists", `directory already exists: ${displayName(file.path)}`);
    },
    async Move(call) {
      const place = await placeIn(parts, call);
      const from = fileAt(place, text(call.message, "source"));
      const to = fileAt(place, text(call.message, "destination"));
      const options = { ...from, to: to.path, replace: true, parents: true, owner: place.owner };
      const moved = await guestFiles.move(place.envd.principal, options);
      return { entry: moved.type === "l" ? await entryAt(place, to) : entryInfo(moved, to.path) };
    },
    async Remove(call) {
      const place = await placeIn(parts, call);
      const file = fileAt(place, text(call.message, "path"));
      await guestFiles.remove(place.envd.principal, { ...file, recursive: true }).catch(unlessMissing);
      return {};
    },
    async ListDir(call) {
      const place = await placeIn(parts, call);
      const depth = Math.min(uint32(call.message, "depth") || 1, LIST_DEPTH_MAX);
      const file = fileAt(place, text(call.message, "path"));
      return { entries: await listDirectory(parts, place, { file, depth, held: call.held }) };
    },
  };
}

function watcherMethods(parts: E2bParts): Record<string, UnaryMethod> {
  const watchers = new Watchers(parts);
  return {
    async CreateWatcher(call) {
      const place = await placeIn(parts, call);
      const fields = watchFieldsIn(call.message);
      const open = (signal: AbortSignal) => watchDirectory(parts, { ...place, signal }, fields);
      return { watcherId: await watchers.create(call.envd.sandbox, open, call.signal) };
    },
    async GetWatcherEvents({ envd, message, signal, held }) {
      const { events, room } = await watchers.events(envd.sandbox.id, text(message, "watcherId"), signal);
      held.use(room);
      return { events };
    },
    async RemoveWatcher({ envd, message }) {
      watchers.remove(envd.sandbox.id, text(message, "watcherId"));
      return {};
    },
  };
}

interface Listing {
  readonly file: FileRequest;
  readonly depth: number;
  /** takes the room of the entries */
  readonly held: DisposableStack;
}

/** The entries below a directory: each directory before its entries, which are in the order of their names. */
async function listDirectory(
  { accounts, service: { guestFiles } }: E2bParts,
  { envd: { principal } }: FilesPlace,
  { file, depth, held }: Listing,
): Promise<EntryInfo[]> {
  const list = await guestFiles.list(principal, { ...file, depth, follow: true, attributes: true });
  using _list = list;
  const entries: { readonly key: string; readonly info: EntryInfo }[] = [];
  let bytes = 0;
  // A short listing needs none.
  let roomBytes = ROOM_STEP_BYTES;
  for await (const entry of list.items) {
    if (entry.path === "") {
      if (entry.type === "d") continue;
      throw new RpcError("invalid_argument", `path is not a directory: ${displayName(file.path)}`);
    }
    const info = entryInfo(entry, pathBelow(file.path, entry.path));
    bytes += JSON.stringify(info).length;
    for (; roomBytes < bytes; roomBytes += ROOM_STEP_BYTES) {
      held.use(accounts.take(principal.accountId, { listings: ROOM_STEP_BYTES }));
    }
    if (entries.length === ENTRIES_COUNT_MAX || bytes > ENTRIES_BYTES_MAX) {
      throw new RpcError("resource_exhausted", `the directory has too many entries: ${displayName(file.path)}`);
    }
    // The separator is the smallest byte of a path, so that a directory comes before names that continue its own.
    entries.push({ key: entry.path.replaceAll("/", "\0"), info });
  }
  return entries.sort((left, right) => (left.key < right.key ? -1 : 1)).map(({ info }) => info);
}

function notDirectory({ path }: FileRequest): (error: unknown) => never {
  return (error) => {
    if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
    const message = `path already exists but it is not a directory: ${displayName(path)}`;
    throw new RpcError("invalid_argument", message, { cause: error });
  };
}
