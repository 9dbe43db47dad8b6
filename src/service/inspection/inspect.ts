import { resolveImage } from "../../db/images/images.ts";
import type { ByteRange } from "../../domain/bytes/byte-range.ts";
import { ApiError } from "../../domain/errors.ts";
import type { ImageId } from "../../domain/ids.ts";
import { checkAbsentTag, parseImageReference } from "../../domain/image.ts";
import type { GrepLine } from "../../domain/tree/grep.ts";
import { type ByteString, displayName, type GuestPath } from "../../domain/tree/guest-path.ts";
import type { Entry } from "../../domain/tree/listing.ts";
import { archiveChunks } from "../../storage/archive/archive.ts";
import type { GrepOutcome, GrepRequest } from "../../storage/tree/grep.ts";
import { GrepThreads } from "../../storage/tree/grep-threads.ts";
import type { ImageTree, ResolvedEntry } from "../../storage/tree/image-tree.ts";
import { unpacked } from "../../storage/tree/packed-lines.ts";
import type { Image } from "../images.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import type { FindOutcome, FindRequest } from "./find.ts";
import { type FollowedEntry, followed } from "./followed.ts";
import { type ByteSource, imageLayers, readerOf, requireImage } from "./layers.ts";

/** A path in an image. Reading stops when `signal` fires. */
export interface PathRequest {
  readonly id: ImageId;
  readonly path: GuestPath;
  readonly signal: AbortSignal;
}

/** The entries of a directory; an array when they are few. */
export interface Directory<Listed extends Entry = Entry> {
  readonly entries: AsyncIterable<Listed> | readonly Listed[];
  /** must be disposed after the entries were read */
  readonly held: Disposable;
}

/** A regular file of an image. Its content is readable until `held` is disposed. */
export interface OpenFile {
  readonly imageId: ImageId;
  readonly held: Disposable;
  /** the file itself: `path` has no symlinks */
  readonly entry: Pick<ResolvedEntry, "path" | "size" | "mtimeSeconds">;
  read(part: ByteRange): Promise<Uint8Array<ArrayBuffer>>;
  /** Host path and offset where the part lies contiguously; null when it is in several pieces. */
  locate(part: ByteRange): Promise<{ readonly disk: string; readonly start: number } | null>;
  /**
   * The part in chunks. `held` takes over `OpenFile.held`.
   * @throws ApiError as `Accounts.wait` does
   */
  stream(part: ByteRange): Promise<ByteSource>;
}

export interface ArchiveRequest extends PathRequest {
  /** true: only a directory or a regular file is archived */
  readonly contentOnly?: boolean;
}

/** A tar archive of a directory or file. `name` is the last part of its path; empty for the root. */
export interface Archive extends ByteSource {
  readonly name: ByteString;
}

/** A search in the files of an image. Reading stops when `signal` fires. */
export type Search = Pick<PathRequest, "id" | "signal"> & Omit<GrepRequest, "layers" | "limits">;

export interface SearchOutcome extends Omit<GrepOutcome, "lines"> {
  /** can be read once */
  readonly lines: AsyncIterable<GrepLine>;
}

/** Reads images without starting a machine. All functions throw ApiError `not_found` for an image of another account. */
export interface InspectUseCases {
  /** The image that has a tag. @throws ApiError `validation_error`, `not_found` */
  byTag(principal: Principal, tag: string): Image;
  image(principal: Principal, id: ImageId): Image;
  /** The image, if it has the path. @throws ApiError `not_found`, `invalid_path` */
  withPath(principal: Principal, request: PathRequest): Promise<Image>;
  /** @throws ApiError `not_found`, `invalid_path`; as `Accounts.wait` does */
  list(principal: Principal, request: PathRequest): Promise<Directory>;
  /** The same for programs that know no links, as `followed` says. @throws as `list` does */
  listFollowed(principal: Principal, request: PathRequest): Promise<Directory<FollowedEntry>>;
  /** The entry at a path, after all links. @throws ApiError `not_found`, `invalid_path` */
  entry(principal: Principal, request: PathRequest): Promise<Omit<ResolvedEntry, "node">>;
  /** @throws ApiError `not_found`; `invalid_path` when the path is not a regular file */
  open(principal: Principal, request: PathRequest): Promise<OpenFile>;
  /** @throws ApiError `not_found`, `invalid_path`; as `Accounts.wait` does */
  archive(principal: Principal, request: ArchiveRequest): Promise<Archive>;
  /** Finds entries by their names. @throws as `findNames` and `Accounts.wait` do */
  find(principal: Principal, request: PathRequest & FindRequest): Promise<FindOutcome>;
  /** @throws as `GrepThreads.run` does */
  grep(principal: Principal, request: Search): Promise<SearchOutcome>;
}

export function inspectUseCases(parts: ServiceParts): InspectUseCases {
  const searches = new GrepThreads(parts.accounts);
  const trees = new Trees(parts);
  return {
    byTag({ accountId }, tag) {
      const image = resolveImage(parts.db, accountId, parseImageReference(`tag:${tag}`));
      if (image !== null) return image;
      checkAbsentTag(tag);
      throw new ApiError("not_found", "no image has this tag", { tag });
    },
    image: (principal, id) => requireImage(parts, principal, id),
    async withPath(principal, { id, path, signal }) {
      const image = requireImage(parts, principal, id);
      using layers = parts.layers.open(image.layerId);
      await layers.tree(readerOf(image.accountId, signal)).stat(path, { follow: true });
      return image;
    },
    list: (principal, request) => trees.directory(principal, request, (entries) => entries),
    listFollowed: (principal, request) =>
      trees.directory(principal, request, (entries, tree) => followed(tree, request.path, entries)),
    async entry(principal, request) {
      const { tree, held } = trees.open(principal, request);
      using _held = held;
      const { node: _node, ...entry } = await tree.stat(request.path, { follow: true });
      return entry;
    },
    async open(principal, request) {
      using undo = new DisposableStack();
      const { tree, held } = trees.open(principal, request);
      undo.use(held);
      const entry = await tree.stat(request.path, { follow: true });
      if (entry.type !== "f") throw wrongKind(request.path, entry.type, "a regular file");
      undo.move();
      const place = () => parts.accounts.wait(principal.accountId, "replies", { signal: request.signal });
      return openFile(request.id, tree, entry, { held, place });
    },
    async archive(principal, request) {
      using undo = new DisposableStack();
      const { tree, held } = await trees.walk(principal, request);
      undo.use(held);
      const resolved = await tree.stat(request.path, { follow: true });
      const { type } = resolved;
      if (request.contentOnly === true && type !== "d" && type !== "f") {
        throw wrongKind(request.path, type, "a regular file or a directory");
      }
      const name = (request.path.split("/").at(-1) ?? "") as ByteString;
      const chunks = archiveChunks(tree, resolved, name, readerOf(principal.accountId, request.signal));
      undo.move();
      return { name, chunks, held };
    },
    async find(principal, request) {
      // The library of regular expressions is as large as that of the database: the daemon starts without it.
      const { findNames } = await import("./find.ts");
      const { tree, held } = await trees.walk(principal, request);
      using _held = held;
      return await findNames(tree, request);
    },
    async grep(principal, { id, signal, ...search }) {
      const held = imageLayers(parts, principal, id);
      const owner = principal.accountId;
      const outcome = await searches.run({ ...search, layers: held.files }, signal, { owner, held });
      return { ...outcome, lines: unpacked(outcome.lines, readerOf(owner, signal)) };
    },
  };
}

/** The trees of images. What these functions return has a `held` that must be disposed of after the tree was read. */
class Trees {
  readonly #parts: ServiceParts;

  constructor(parts: ServiceParts) {
    this.#parts = parts;
  }

  /** @throws ApiError `not_found` */
  open(principal: Principal, { id, signal }: PathRequest) {
    const held = imageLayers(this.#parts, principal, id);
    return { tree: held.tree(readerOf(principal.accountId, signal)), held };
  }

  /** The same for a walk, which waits for its turn. @throws ApiError `not_found`; as `Accounts.wait` does */
  async walk(principal: Principal, request: PathRequest) {
    requireImage(this.#parts, principal, request.id);
    using undo = new DisposableStack();
    undo.use(await this.#parts.accounts.wait(principal.accountId, "walks", { signal: request.signal }));
    // The image may have been deleted during the wait: look it up again.
    const { tree, held } = this.open(principal, request);
    undo.use(held);
    return { tree, held: undo.move() };
  }

  async directory<Listed extends Entry>(
    principal: Principal,
    request: PathRequest,
    listed: (entries: Directory["entries"], tree: ImageTree) => Directory<Listed>["entries"],
  ): Promise<Directory<Listed>> {
    using undo = new DisposableStack();
    const { tree, held } = await this.walk(principal, request);
    undo.use(held);
    const entries = listed(await tree.list(request.path), tree);
    undo.move();
    return { entries, held };
  }
}

function openFile(
  imageId: ImageId,
  tree: ImageTree,
  entry: ResolvedEntry,
  { held, place }: { readonly held: Disposable; readonly place: () => Promise<Disposable> },
): OpenFile {
  return {
    imageId,
    held,
    entry,
    read: (part) => tree.read(entry, part),
    locate: (part) => tree.locate(entry, part),
    async stream(part) {
      const owned = new DisposableStack();
      owned.use(await place());
      owned.use(held);
      return { chunks: tree.chunks(entry, part), held: owned };
    },
  };
}

const KIND_NAMES = {
  d: "a directory",
  l: "a symlink",
  b: "a block device",
  c: "a character device",
  p: "a fifo",
  s: "a socket",
};

function wrongKind(path: GuestPath, type: keyof typeof KIND_NAMES, expected: string): ApiError {
  return new ApiError("invalid_path", `path is ${KIND_NAMES[type]}, not ${expected}`, { path: displayName(path) });
}
