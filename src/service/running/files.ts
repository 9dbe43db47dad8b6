import { requireSandbox } from "../../db/sandboxes/rows.ts";
import { ApiError, type ErrorCode } from "../../domain/errors.ts";
import type { ImageId } from "../../domain/ids.ts";
import type {
  GuestEntry,
  GuestFile,
  GuestFileEvent,
  GuestFileProperties,
  GuestUser,
} from "../../domain/tree/guest-file.ts";
import { displayName, type GuestPath, pathBelow } from "../../domain/tree/guest-path.ts";
import type { GuestFiles, MoveOptions } from "../../supervisor/instance/instance-files.ts";
import { WatchSyncs } from "../../supervisor/instance/instance-files.ts";
import { type CHANGES, type Changed, change } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { listHead, readHead, statHead } from "./head-files.ts";
import { begun, type HeldStream, type ReadGuestFile } from "./held-stream.ts";
import { idOf, type LiveTarget, liveTarget, onMachine, type Target } from "./running.ts";

/** A path of a target, and in whose name it is used. `signal` ends the request, and the work in the guest. */
export interface FileRequest {
  readonly target: Target;
  readonly path: GuestPath;
  /** absent: root */
  readonly user?: string | undefined;
  readonly signal: AbortSignal;
}

/** A user of a target, by name or number, optionally with `:` and a group. */
export interface UserRequest extends Pick<FileRequest, "target" | "signal"> {
  readonly user: string;
}

export interface ListRequest extends FileRequest {
  /** 0: the path alone */
  readonly depth: number;
  /** whether symlinks in the listing are described by what they lead to; the path itself is always followed */
  readonly follow: boolean;
  /** whether the entries have their attributes; those of a paused sandbox have none */
  readonly attributes?: boolean;
}

export interface ReadRequest extends FileRequest {
  /** first byte */
  readonly offset?: number | undefined;
  /** number of `bytes`; absent: to the end */
  readonly length?: number | undefined;
}

export interface WriteRequest extends FileRequest, GuestFileProperties {
  readonly parents: boolean;
  /** true: the file appears when it is complete, as a new file */
  readonly atomic: boolean;
  /** true: the bytes are added at the end */
  readonly append: boolean;
  /** true: the file must not exist */
  readonly exclusive: boolean;
  readonly content: AsyncIterable<Uint8Array>;
}

/** An event, and the entry as it was afterwards, if that was requested and it existed. */
export interface WatchedEvent extends GuestFileEvent {
  readonly entry: GuestEntry | null;
}

/** A watch, whose events one reader takes. */
export interface Watching extends HeldStream<WatchedEvent> {
  /** Resolves when the reader has taken every event before this call. @throws ApiError `unavailable` when the watch ends */
  sync(): Promise<void>;
}

/**
 * The files of what runs. All functions throw ApiError `not_found` for the target or the path, `conflict` when the target is
 * not running, `invalid_path`, `forbidden` for what the user may not do, as `Accounts.wait` does, and `unavailable`.
 */
export interface GuestFileUseCases {
  stat(principal: Principal, request: FileRequest & { readonly follow: boolean }): Promise<GuestEntry>;
  /** The user of a text, as in `GuestFile`. @throws ApiError `not_found` when the guest has no such user or group */
  user(principal: Principal, request: UserRequest): Promise<GuestUser>;
  /** The entries, from that of the path itself; its errors are thrown before. */
  list(principal: Principal, request: ListRequest): Promise<HeldStream<GuestEntry>>;
  /** Opens a regular file. */
  read(principal: Principal, request: ReadRequest): Promise<ReadGuestFile>;
  /** @throws ApiError `insufficient_storage`; the error of the content */
  write(principal: Principal, request: WriteRequest): Promise<Changed<GuestEntry>>;
  makeDirectory(
    principal: Principal,
    request: FileRequest & GuestFileProperties & { readonly parents: boolean },
  ): Promise<Changed<{ readonly entry: GuestEntry; readonly created: boolean }>>;
  remove(principal: Principal, request: FileRequest & { readonly recursive: boolean }): Promise<Changed<void>>;
  /** @throws ApiError `conflict` when `to` exists, unless `replace` is true */
  move(principal: Principal, request: FileRequest & MoveOptions): Promise<Changed<GuestEntry>>;
  /** Makes a file of the contents of others, which stay. */
  join(
    principal: Principal,
    request: FileRequest & GuestFileProperties & { readonly from: readonly GuestPath[] },
  ): Promise<Changed<GuestEntry>>;
  change(principal: Principal, request: FileRequest & GuestFileProperties): Promise<Changed<GuestEntry>>;
  /**
   * The changes in a directory, until `signal` fires; the first event is `ready`.
   * @throws ApiError `too_many_requests` when the account follows too many events, or the guest has too many watches
   */
  watch(
    principal: Principal,
    request: FileRequest & { readonly recursive: boolean; readonly entries: boolean },
  ): Promise<Watching>;
}

export function guestFileUseCases(parts: ServiceParts): GuestFileUseCases {
  return { ...reads(parts), ...changes(parts) };
}

function reads(parts: ServiceParts): Pick<GuestFileUseCases, "stat" | "user" | "list" | "read" | "watch"> {
  return {
    async stat(principal, { follow, ...request }) {
      const { path, signal } = request;
      const image = pausedHead(parts, principal, request);
      if (image !== null) return await statHead(parts, principal, { image, path, signal, follow });
      return await once(parts, principal, request, (files, file) => files.stat(file, { follow, signal }));
    },
    async user(principal, request) {
      const at = { ...request, path: "/" as GuestPath };
      return await once(parts, principal, at, (files, { user }) => files.user(user, { signal: request.signal }));
    },
    async list(principal, { depth, follow, attributes = false, ...request }) {
      const { signal } = request;
      const image = pausedHead(parts, principal, request);
      if (image !== null) return await listHead(parts, principal, { image, path: request.path, signal, depth, follow });
      using undo = new DisposableStack();
      const { files, during, file, held } = await open(parts, principal, request);
      undo.use(held);
      const entries = files.items((guest) => guest.list(file, { depth, follow, attributes, signal }));
      return await during(() => begun(entries, undo.move()));
    },
    async read(principal, { offset = 0, length, ...request }) {
      const { signal } = request;
      const image = pausedHead(parts, principal, request);
      if (image !== null) {
        return await readHead(parts, principal, { image, path: request.path, signal, offset, length });
      }
      using undo = new DisposableStack();
      const { files, use, file, held } = await open(parts, principal, request);
      undo.use(held);
      const { entry, chunks, ...opened } = await use((guest) => guest.read(file, { offset, length, signal }));
      const owned = undo.move();
      return {
        entry,
        items: files.items(() => chunks),
        // The guest must have ended this request before another one takes its place.
        [Symbol.dispose]: () => void opened[Symbol.asyncDispose]().then(() => owned.dispose()),
      };
    },
    async watch(principal, { recursive, entries, ...request }) {
      using undo = new DisposableStack();
      undo.use(parts.accounts.take(principal.accountId, "eventReaders"));
      // It only reads, so it starts no machine.
      const { target, signal } = request;
      const live = undo.use(await liveTarget(parts, principal, target, { signal, resumes: false }));
      const file = fileOf(live, request);
      const syncs = new WatchSyncs();
      const { files } = live.instance;
      const events = files.items((guest) => guest.watch(file, { recursive, syncs, signal }));
      const entryOf = entries ? (event: GuestFileEvent) => presentEntry(parts, principal, request, event) : undefined;
      const stream = await begun(watched(events, entryOf), undo.move());
      return { ...stream, sync: () => files.use(() => syncs.request()) };
    },
  };
}

function changes(parts: ServiceParts): Omit<GuestFileUseCases, keyof ReturnType<typeof reads>> {
  const changed = <T>(
    principal: Principal,
    what: { readonly noun: "guest_file"; readonly verb: (typeof CHANGES)["guest_file"][number] },
    request: FileRequest,
    work: (files: GuestFiles, file: GuestFile) => Promise<T>,
  ): Promise<Changed<T>> => {
    const details = () => ({ path: displayName(request.path) });
    return change(parts, principal, { ...what, id: idOf(request.target), details }, () =>
      once(parts, principal, request, work),
    );
  };
  return {
    write(principal, { content, parents, atomic, append, exclusive, ...request }) {
      const options = { parents, atomic, append, exclusive, ...propertiesOf(request) };
      const what = { noun: "guest_file", verb: "write" } as const;
      return changed(principal, what, request, (files, file) => files.write(file, options, content));
    },
    makeDirectory(principal, { parents, ...request }) {
      const options = { parents, ...propertiesOf(request) };
      const what = { noun: "guest_file", verb: "make" } as const;
      return changed(principal, what, request, (files, file) => files.makeDirectory(file, options));
    },
    remove(principal, { recursive, ...request }) {
      const options = { recursive, signal: request.signal };
      const what = { noun: "guest_file", verb: "remove" } as const;
      return changed(principal, what, request, (files, file) => files.remove(file, options));
    },
    move(principal, { to, replace, parents, owner, ...request }) {
      const options = { to, replace, parents, owner, signal: request.signal };
      const what = { noun: "guest_file", verb: "move" } as const;
      return changed(principal, what, request, (files, file) => files.move(file, options));
    },
    join(principal, { from, ...request }) {
      const options = { from, ...propertiesOf(request) };
      const what = { noun: "guest_file", verb: "join" } as const;
      return changed(principal, what, request, (files, file) => files.join(file, options));
    },
    change(principal, request) {
      const options = propertiesOf(request);
      const what = { noun: "guest_file", verb: "change" } as const;
      return changed(principal, what, request, (files, file) => files.change(file, options));
    },
  };
}

/** The image that has the files of a paused sandbox; null: they are those of a machine. */
function pausedHead(parts: ServiceParts, principal: Principal, { target }: FileRequest): ImageId | null {
  if (typeof target === "string") return null;
  const { state, headId } = requireSandbox(parts.db, principal.accountId, target.sandbox);
  return state === "paused" ? headId : null;
}

/** The files of a target, for one request that ends with the disposal. */
async function open(parts: ServiceParts, principal: Principal, { target, path, user, signal }: FileRequest) {
  using undo = new DisposableStack();
  undo.use(await parts.accounts.wait(principal.accountId, "guestFiles", { signal }));
  const live = undo.use(await liveTarget(parts, principal, target, { signal, resumes: true }));
  const { files } = live.instance;
  const during = <T>(work: () => Promise<T>) => onMachine(parts, target, live, work);
  const use = <T>(work: (guest: GuestFiles) => Promise<T>) => during(() => files.use(work));
  return { files, use, during, file: fileOf(live, { path, user }), held: undo.move() };
}

function fileOf({ stored }: LiveTarget, { path, user }: Pick<FileRequest, "path" | "user">): GuestFile {
  return { path, user: user ?? stored.defaults.user ?? "" };
}

async function once<T>(
  parts: ServiceParts,
  principal: Principal,
  request: FileRequest,
  work: (files: GuestFiles, file: GuestFile) => Promise<T>,
): Promise<T> {
  const { use, file, held } = await open(parts, principal, request);
  using _held = held;
  return await use((guest) => work(guest, file));
}

/** Events about something that may exist afterwards. */
const LASTING: ReadonlySet<GuestFileEvent["type"]> = new Set(["create", "write", "rename_to", "chmod"]);

async function* watched(
  events: AsyncGenerator<GuestFileEvent, void, undefined>,
  entryOf: ((event: GuestFileEvent) => Promise<GuestEntry | null>) | undefined,
): AsyncGenerator<WatchedEvent, void, undefined> {
  for await (const event of events) {
    yield { ...event, entry: LASTING.has(event.type) ? ((await entryOf?.(event)) ?? null) : null };
  }
}

/** Errors after which an event has no entry: the file is gone, or the account has too many other requests. */
const NO_ENTRY: ReadonlySet<ErrorCode> = new Set(["not_found", "invalid_path", "forbidden", "too_many_requests"]);

/** The entry that an event is about; null when there is none to describe. */
async function presentEntry(
  parts: ServiceParts,
  principal: Principal,
  { path: directory, ...request }: FileRequest,
  { path }: GuestFileEvent,
): Promise<GuestEntry | null> {
  const at = { ...request, path: pathBelow(directory, path) };
  const options = { follow: false, signal: request.signal };
  return await once(parts, principal, at, (files, file) => files.stat(file, options)).catch((error: unknown) => {
    if (error instanceof ApiError && NO_ENTRY.has(error.code)) return null;
    throw error;
  });
}

function propertiesOf({ mode, owner, attributes, signal }: GuestFileProperties & FileRequest) {
  return { mode, owner, attributes, signal };
}
