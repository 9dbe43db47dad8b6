import { ApiError } from "../../domain/errors.ts";
import type { ImageId } from "../../domain/ids.ts";
import type { GuestEntry } from "../../domain/tree/guest-file.ts";
import { type ByteString, displayName, type GuestPath, pathBelow } from "../../domain/tree/guest-path.ts";
import type { Entry } from "../../domain/tree/listing.ts";
import type { ImageTree } from "../../storage/tree/image-tree.ts";
import { imageLayers, readerOf } from "../inspection/layers.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import type { HeldStream, ReadGuestFile } from "./held-stream.ts";

const NS_PER_SECOND = 1_000_000_000n;

/** A path of an image. Reading stops when `signal` fires. */
interface HeadRequest {
  readonly image: ImageId;
  readonly path: GuestPath;
  readonly signal: AbortSignal;
}

/** Describes a file of an image as `GuestFiles.stat` does one of a guest. @throws ApiError `not_found`, `invalid_path` */
export async function statHead(
  parts: ServiceParts,
  principal: Principal,
  request: HeadRequest & { readonly follow: boolean },
): Promise<GuestEntry> {
  const { tree, held } = headTree(parts, principal, request);
  using _held = held;
  return await entryAt(tree, request.path, request.follow);
}

/** Lists a directory of an image as `GuestFileUseCases.list` does. @throws ApiError `not_found`; as `Accounts.wait` does */
export async function listHead(
  parts: ServiceParts,
  principal: Principal,
  request: HeadRequest & { readonly depth: number; readonly follow: boolean },
): Promise<HeldStream<GuestEntry>> {
  using undo = new DisposableStack();
  undo.use(await parts.accounts.wait(principal.accountId, "walks", { signal: request.signal }));
  const { tree, held } = headTree(parts, principal, request);
  undo.use(held);
  const { path, follow } = request;
  const top = await tree.stat(path, { follow: true });
  const items = async function* (): AsyncGenerator<GuestEntry, void, undefined> {
    yield guestEntry(top, "" as ByteString);
    if (top.type === "d") yield* entriesBelow(tree, top.path, { relative: "", depth: request.depth, follow });
  };
  const owned = undo.move();
  return { items: items(), [Symbol.dispose]: () => owned.dispose() };
}

/** Opens a file of an image as `GuestFileUseCases.read` does. @throws ApiError `invalid_path`; as `Accounts.wait` does */
export async function readHead(
  parts: ServiceParts,
  principal: Principal,
  request: HeadRequest & { readonly offset: number; readonly length: number | undefined },
): Promise<ReadGuestFile> {
  using undo = new DisposableStack();
  undo.use(await parts.accounts.wait(principal.accountId, "replies", { signal: request.signal }));
  const { tree, held } = headTree(parts, principal, request);
  undo.use(held);
  const file = await tree.stat(request.path, { follow: true });
  if (file.type !== "f") {
    throw new ApiError("invalid_path", "not a regular file", { path: displayName(request.path) });
  }
  const start = Math.min(request.offset, file.size);
  const end = request.length === undefined ? file.size : Math.min(start + request.length, file.size);
  const owned = undo.move();
  const chunks = async function* (): AsyncGenerator<Uint8Array, void, undefined> {
    // Its buffer is used again for the next chunk.
    for await (const chunk of tree.chunks(file, { start, end })) yield chunk.slice();
  };
  return { entry: guestEntry(file, request.path), items: chunks(), [Symbol.dispose]: () => owned.dispose() };
}

/** The tree of an image. `held` must be disposed after it was read. */
function headTree(parts: ServiceParts, principal: Principal, { image, signal }: HeadRequest) {
  const held = imageLayers(parts, principal, image);
  return { tree: held.tree(readerOf(principal.accountId, signal)), held };
}

/** The entry at a path. A symlink that leads nowhere is described itself, as in a guest. */
async function entryAt(tree: ImageTree, path: GuestPath, follow: boolean): Promise<GuestEntry> {
  const own = await tree.stat(path, { follow: false });
  if (!follow || own.type !== "l") return guestEntry(own, path);
  const target = await tree.stat(path, { follow: true }).catch((error: unknown) => {
    if (error instanceof ApiError) return null;
    throw error;
  });
  return target === null ? guestEntry(own, path) : { ...guestEntry(target, path), target: target.path };
}

interface Below {
  /** path of the directory relative to that of the listing; empty, or with a final slash */
  readonly relative: string;
  readonly depth: number;
  readonly follow: boolean;
}

async function* entriesBelow(
  tree: ImageTree,
  directory: GuestPath,
  { relative, depth, follow }: Below,
): AsyncGenerator<GuestEntry, void, undefined> {
  if (depth === 0) return;
  for await (const entry of await tree.list(directory)) {
    const path = `${relative}${entry.name}` as ByteString;
    const at = pathBelow(directory, entry.name);
    const isFollowed = follow && entry.type === "l";
    yield isFollowed ? { ...(await entryAt(tree, at, true)), path } : guestEntry(entry, path);
    if (entry.type === "d") yield* entriesBelow(tree, at, { relative: `${path}/`, depth: depth - 1, follow });
  }
}

function guestEntry(entry: Entry, path: ByteString): GuestEntry {
  const { type, mode, uid, gid, size, nlink, target, mtimeSeconds, mtimeNanoseconds } = entry;
  return {
    ...{ path, type, mode, uid, gid, size, nlink, target },
    // An image has the numbers alone.
    ...{ user: "" as ByteString, group: "" as ByteString },
    mtimeNs: BigInt(mtimeSeconds) * NS_PER_SECOND + BigInt(mtimeNanoseconds),
    inode: 0n,
    attributes: new Map(),
  };
}
