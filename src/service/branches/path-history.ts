import { type HistoryRow, lineageSteps } from "../../db/images/history.ts";
import { ApiError } from "../../domain/errors.ts";
import type { ImageId } from "../../domain/ids.ts";
import { type ByteString, displayName, type GuestPath, pathBelow } from "../../domain/tree/guest-path.ts";
import type { Entry, EntryType } from "../../domain/tree/listing.ts";
import { DIFF_MS_MAX } from "../../storage/limits.ts";
import { MergedNames, type MergeTools, mergeTools, nodeOf } from "../../storage/tree/directory-merge.ts";
import type { ImageTree, ResolvedEntry } from "../../storage/tree/image-tree.ts";
import type { OpenLayers } from "../../storage/tree/open-layers.ts";
import { DirectoryTouches, namesOf, type PathChange, PathComparison } from "../../storage/tree/path-change.ts";
import { readerOf, requireImage } from "../inspection/layers.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { LineageWalk, type Transition } from "./lineage-walk.ts";

/** Comparisons of states that a request keeps for the next entry. */
const COMPARISONS_COUNT_MAX = 32;

/** A change of a path by a step of the lineage. */
export interface PathStep {
  readonly step: HistoryRow;
  readonly change: PathChange;
  /** number of deleted states before this one whose files are not kept: the step of one of them may have made the change */
  readonly unknownCount: number;
}

/** A page of the changes of a path, the newest first. */
export interface PathLog {
  /** without symlinks on the way */
  readonly path: GuestPath;
  readonly items: readonly PathStep[];
  /** number of the step with which the next page begins; null: there is none */
  readonly next: number | null;
}

/** An entry and the last change of it or, for a directory, of something in it. */
export interface BlamedEntry {
  readonly path: GuestPath;
  readonly entry: Entry;
  /** null: the search has reached its limit */
  readonly last: (Omit<PathStep, "step"> & { readonly imageId: ImageId }) | null;
}

/** A page of the entries of a directory, or one entry. */
export interface Blame {
  /** without symlinks on the way */
  readonly path: GuestPath;
  readonly type: EntryType;
  readonly items: readonly BlamedEntry[];
  /** the steps of the items, the newest first */
  readonly steps: readonly HistoryRow[];
  /** the name after which the next page begins; null: there is none */
  readonly next: ByteString | null;
}

/** A path in an image. A symlink on the way is followed, one at the end is not. */
export interface PathHistoryRequest {
  readonly id: ImageId;
  readonly path: GuestPath;
  readonly limit: number;
  readonly signal: AbortSignal;
}

export interface PathLogRequest extends PathHistoryRequest {
  /** number of the first step of the page; 0 for the first page */
  readonly from: number;
}

export interface BlameRequest extends PathHistoryRequest {
  /** the last name of the page before; null for the first page */
  readonly after: ByteString | null;
}

/** The changes of a path in the lineage of an image. A page ends early when its time is over. @throws as `BranchUseCases` says */
export async function pathLog(parts: ServiceParts, principal: Principal, request: PathLogRequest): Promise<PathLog> {
  using search = await PathSearch.open(parts, principal, request, request.from);
  const path = await canonicalPath(search.tree, request.path);
  const deadline = performance.now() + DIFF_MS_MAX;
  const [directory, name] = split(path);
  const changes: { readonly transition: Transition; readonly change: PathChange }[] = [];
  let next: number | null = null;
  for (let index = 0; ; index++) {
    const transition = await search.walk.transition(index);
    if (transition === null) break;
    if (transition === "limit" || changes.length === request.limit || (index > 0 && performance.now() > deadline))
      break;
    const change = await search.changeAt(transition, directory, name);
    if (change !== null) changes.push({ transition, change });
    next = transition.next;
    if (next === null) break;
  }
  if (changes.length === 0 && next === null && request.from === 0) throw missing(request.path);
  const steps = lineageSteps(
    parts.db,
    changes.map(({ transition }) => transition.imageId),
  );
  const byId = new Map(steps.map((step) => [step.imageId, step]));
  const items = changes.flatMap(({ transition: { imageId, unknownCount }, change }): PathStep[] => {
    const step = byId.get(imageId);
    return step === undefined ? [] : [{ step, change, unknownCount }];
  });
  return { path, items, next };
}

/** The last change of a file, or of each entry of a directory. @throws as `BranchUseCases` says */
export async function blame(parts: ServiceParts, principal: Principal, request: BlameRequest): Promise<Blame> {
  using search = await PathSearch.open(parts, principal, request, 0);
  const resolved = await search.tree.stat(request.path, { follow: false });
  const { path, type } = resolved;
  const deadline = performance.now() + DIFF_MS_MAX;
  if (type !== "d") {
    const items = [{ path, entry: resolved, last: await search.lastChange(path, deadline) }];
    return { path, type, items, steps: stepsOf(parts, items), next: null };
  }
  const items: BlamedEntry[] = [];
  let next: ByteString | null = null;
  for await (const entry of search.entries(resolved, request.after)) {
    if (items.length === request.limit || (items.length > 0 && performance.now() > deadline)) {
      next = items.at(-1)?.entry.name ?? null;
      break;
    }
    const at = pathBelow(path, entry.name);
    items.push({ path: at, entry, last: await search.lastChange(at, deadline) });
  }
  return { path, type, items, steps: stepsOf(parts, items), next };
}

function stepsOf({ db }: ServiceParts, items: readonly BlamedEntry[]): readonly HistoryRow[] {
  const ids = new Set(items.flatMap(({ last }) => last?.imageId ?? []));
  return lineageSteps(db, [...ids]).toSorted((a, b) => b.createdAt - a.createdAt);
}

function missing(path: GuestPath): ApiError {
  return new ApiError("not_found", "no state of the image has this path", { path: displayName(path) });
}

/** The directory of a path and its name in it; no name for the root. */
function split(path: GuestPath): readonly [directory: GuestPath, name: ByteString | null] {
  const names = namesOf(path);
  return [`/${names.slice(0, -1).join("/")}` as GuestPath, names.at(-1) ?? null];
}

/**
 * The path without symlinks on the way to its last name. Names that the image does not have stay as they are, so that a path
 * that was removed has a history, too.
 * @throws ApiError `invalid_path`
 */
async function canonicalPath(tree: ImageTree, path: GuestPath): Promise<GuestPath> {
  const names = namesOf(path);
  const find = async (count: number): Promise<GuestPath | null> => {
    const prefix = `/${names.slice(0, count).join("/")}` as GuestPath;
    try {
      return (await tree.stat(prefix, { follow: count < names.length })).path;
    } catch (error) {
      if (error instanceof ApiError && error.code === "not_found") return null;
      throw error;
    }
  };
  const whole = await find(names.length);
  if (whole !== null) return whole;
  // Nothing is below a missing directory.
  let count = 0;
  let real = "/" as GuestPath;
  for (let low = 1, high = names.length - 1; low <= high; ) {
    const middle = Math.ceil((low + high) / 2);
    const at = await find(middle);
    if (at === null) high = middle - 1;
    else {
      [count, real] = [middle, at];
      low = middle + 1;
    }
  }
  return pathBelow(real, names.slice(count).join("/") as ByteString);
}

/** Looks for the changes of paths in one lineage. */
class PathSearch implements Disposable {
  readonly walk: LineageWalk;
  readonly tree: ImageTree;
  readonly #open: OpenLayers;
  readonly #tools: MergeTools;
  readonly #owned: Disposable;
  /** of the directory that was asked last */
  #touches: { readonly directory: GuestPath; readonly of: DirectoryTouches } | null = null;
  /** by the number of the newer state, the last used one last */
  readonly #comparisons = new Map<number, PathComparison>();

  private constructor(walk: LineageWalk, tools: MergeTools, tree: ImageTree, owned: Disposable) {
    this.walk = walk;
    this.tree = tree;
    this.#open = tools.open;
    this.#tools = tools;
    this.#owned = owned;
  }

  /** @param from number of the first step */
  static async open(
    parts: ServiceParts,
    principal: Principal,
    { id, signal }: PathHistoryRequest,
    from: number,
  ): Promise<PathSearch> {
    requireImage(parts, principal, id);
    using undo = new DisposableStack();
    undo.use(await parts.accounts.wait(principal.accountId, "walks", { signal }));
    // The image may have been deleted during the wait: look it up again.
    const walk = undo.use(
      await LineageWalk.open(parts, principal, requireImage(parts, principal, id), { at: from, signal }),
    );
    const cancellation = readerOf(principal.accountId, signal);
    const tools = mergeTools(walk.image.openLayers, cancellation);
    return new PathSearch(walk, tools, walk.image.tree(cancellation), undo.move());
  }

  [Symbol.dispose](): void {
    this.#owned[Symbol.dispose]();
  }

  /** The entries of a directory of the image, by the bytes of their names. */
  async *entries({ node }: ResolvedEntry, after: ByteString | null): AsyncGenerator<Entry, void, undefined> {
    const names = new MergedNames(this.#tools, node, { after, depth: 0 });
    for (;;) {
      const candidate = await names.next();
      if (candidate === null) return;
      const child = nodeOf(node, candidate);
      if (child !== null) yield child[0].entry;
    }
  }

  /** The newest change of a path; null when the search has reached its limit. */
  async lastChange(path: GuestPath, deadline: number): Promise<BlamedEntry["last"]> {
    const [directory, name] = split(path);
    for (let index = 0; performance.now() <= deadline; index++) {
      const transition = await this.walk.transition(index);
      if (transition === null || transition === "limit") return null;
      const change = await this.changeAt(transition, directory, name);
      const { imageId, unknownCount } = transition;
      if (change !== null) return { imageId, change, unknownCount };
    }
    return null;
  }

  /** How a transition changed the entry `name` of a directory; null when it did not. */
  async changeAt(transition: Transition, directory: GuestPath, name: ByteString | null): Promise<PathChange | null> {
    const { own, at } = transition;
    const { pacer } = this.#tools;
    if (this.#touches?.directory !== directory) {
      this.#touches = { directory, of: new DirectoryTouches(this.#open, directory) };
      this.#comparisons.clear();
    }
    let isTouched = false;
    for (const layer of own) {
      if (pacer.shouldYield()) await pacer.yield();
      isTouched = this.#touches.of.touches(layer, name);
      if (isTouched) break;
    }
    if (!isTouched) return null;
    const comparison = this.#comparisons.get(at) ?? new PathComparison(transition.layers(), this.#tools);
    this.#comparisons.delete(at);
    this.#comparisons.set(at, comparison);
    const [oldest] = this.#comparisons.keys();
    if (this.#comparisons.size > COMPARISONS_COUNT_MAX && oldest !== undefined) this.#comparisons.delete(oldest);
    return await comparison.at(name === null ? directory : pathBelow(directory, name));
  }
}
