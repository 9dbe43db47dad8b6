import {
  branchImagesFrom,
  type BranchImage as ImageNode,
  type ImagePlace,
  placeBefore,
  placeBehind,
  placeOf,
  walkUp,
} from "../../db/branches/branch-images.ts";
import { branchOperations, type BranchOperation as OperationNode } from "../../db/branches/branch-operations.ts";
import type { Database } from "../../db/database.ts";
import type { AccountId, ImageId } from "../../domain/ids.ts";
import { Pacer } from "../../storage/pacer.ts";
import { noSuchImage, readerOf } from "../inspection/layers.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { pacedRequestLines } from "../request-lines.ts";

/** Images and operations that are read in one turn of the event loop: a few milliseconds where all commands are very long. */
const IMAGES_COUNT = 100;
const OPERATIONS_COUNT = 32;
/** Images of the first turn: the code that reads them may be cold. */
const FIRST_IMAGES_COUNT = 10;
/** Largest number of images that a turn skips: an index entry each. */
const SKIPPED_COUNT = 4000;
/** Largest number of deleted images that one turn, and one answer, passes. */
const TURN_STEPS_MAX = 200;
const ANSWER_STEPS_MAX = 100_000;
/** Largest number of deleted images for which an answer caches the nearest existing ancestor. */
const CACHED_COUNT_MAX = 2000;

/** An image, with its nearest ancestor that exists. */
export interface BranchImage extends Omit<ImageNode, "madeFromId" | "hasParent"> {
  /** null for a root */
  readonly parentId: ImageId | null;
  /** number of deleted images between it and its parent, or above a root */
  readonly skippedCount: number;
}

/** An operation, with one line about its request if there is one. */
export type BranchOperation = OperationNode & { readonly about: string | null };

/** A part of the branches of an account. */
export type BranchPart =
  | { readonly type: "operations"; readonly operations: readonly BranchOperation[] }
  | { readonly type: "images"; readonly images: readonly BranchImage[] }
  /** the last part; `isOlderLeft`: there are older images than those of the answer */
  | { readonly type: "end"; readonly isOlderLeft: boolean };

export interface BranchesRequest {
  /** number of images; the newest ones */
  readonly limit: number;
  /** only images that are older than this one */
  readonly before: ImageId | null;
  /** false: the operations are left out */
  readonly withOperations: boolean;
  readonly signal: AbortSignal;
}

/** Parts that are read one by one. Disposal ends them. */
export interface BranchParts extends Disposable {
  readonly parts: AsyncGenerator<BranchPart, void, undefined>;
}

/**
 * The branches of an account: the operations that have not ended, and then the images, parents first.
 * @throws ApiError `not_found` for the image of `before`; as `Accounts.wait` does
 */
export async function readBranches(
  { db, accounts }: Pick<ServiceParts, "db" | "accounts">,
  { accountId }: Principal,
  request: BranchesRequest,
): Promise<BranchParts> {
  const before = request.before === null ? null : placeOf(db, accountId, request.before);
  if (request.before !== null && before === null) throw noSuchImage(request.before);
  const place = await accounts.wait(accountId, "replies", { signal: request.signal });
  const parts = branchParts(db, accountId, { ...request, before });
  return { parts, [Symbol.dispose]: () => place[Symbol.dispose]() };
}

async function* branchParts(
  db: Database,
  accountId: AccountId,
  { limit, before, withOperations, signal }: Omit<BranchesRequest, "before"> & { readonly before: ImagePlace | null },
): AsyncGenerator<BranchPart, void, undefined> {
  const pacer = new Pacer(readerOf(accountId, signal));
  // An operation that starts meanwhile is read in one of the states, or in both.
  for (const status of withOperations ? LIVE : []) {
    for (let last: OperationNode | null = null; ; ) {
      await pacer.yield();
      const nodes: OperationNode[] = branchOperations(db, accountId, status, last, OPERATIONS_COUNT);
      if (nodes.length > 0) yield { type: "operations", operations: await withLines(db, nodes) };
      if (nodes.length < OPERATIONS_COUNT) break;
      last = nodes.at(-1) ?? null;
    }
  }
  const oldest = await oldestOf(db, accountId, { limit, before }, pacer);
  const ancestry = new Ancestry(db, pacer);
  let from = oldest ?? BEGINNING;
  for (let left = limit; left > 0; ) {
    await pacer.yield();
    const count = Math.min(left, IMAGES_COUNT, FIRST_IMAGES_COUNT + limit - left);
    const nodes = branchImagesFrom(db, accountId, from, before, count);
    const images: BranchImage[] = [];
    for (const node of nodes) {
      const image = ancestry.of(node);
      images.push(image instanceof Promise ? await image : image);
    }
    if (images.length > 0) yield { type: "images", images };
    const last = nodes.at(-1);
    left -= nodes.length;
    if (last === undefined || nodes.length < count) break;
    from = placeBehind(last);
  }
  await pacer.yield();
  yield { type: "end", isOlderLeft: oldest !== null && placeBefore(db, accountId, oldest, 1) !== null };
}

/** Adds the lines to operations. */
export async function withLines(db: Database, nodes: readonly OperationNode[]): Promise<BranchOperation[]> {
  const ids = nodes.map(({ id }) => id);
  const lines = await pacedRequestLines(db, ids);
  return nodes.map((node) => ({ ...node, about: lines.get(node.id) ?? null }));
}

/** The place of the oldest of the newest images; null when the account has fewer. */
async function oldestOf(
  db: Database,
  accountId: AccountId,
  { limit, before }: { readonly limit: number; readonly before: ImagePlace | null },
  pacer: Pacer,
): Promise<ImagePlace | null> {
  let oldest = before;
  for (let left = limit; left > 0; ) {
    const count = Math.min(left, SKIPPED_COUNT);
    await pacer.yield();
    oldest = placeBefore(db, accountId, oldest, count);
    if (oldest === null) return null;
    left -= count;
  }
  return oldest;
}

const LIVE = ["PENDING", "EXECUTING"] as const;

/** A place before all images. */
const BEGINNING: ImagePlace = { createdAt: 0, id: "" as ImageId };

interface Above {
  readonly parentId: ImageId | null;
  readonly skippedCount: number;
}

/** Finds the nearest existing ancestors of images. It lives as long as an answer. */
export class Ancestry {
  readonly #db: Database;
  readonly #pacer: Pacer;
  readonly #cached = new Map<ImageId, Above>();
  #stepsLeft = ANSWER_STEPS_MAX;

  constructor(db: Database, pacer: Pacer) {
    this.#db = db;
    this.#pacer = pacer;
  }

  /** A promise only for an image whose parent is deleted. */
  of({ madeFromId, hasParent, ...image }: ImageNode): BranchImage | Promise<BranchImage> {
    if (madeFromId === null || hasParent) return { ...image, parentId: madeFromId, skippedCount: 0 };
    const above = this.#cached.get(madeFromId);
    if (above !== undefined) return { ...image, ...above };
    return this.#find(madeFromId).then((ancestor) => ({ ...image, ...ancestor }));
  }

  async #find(deleted: ImageId): Promise<Above> {
    let skippedCount = 0;
    let above: Above | null = null;
    for (let at: ImageId = deleted; above === null; ) {
      const walked = this.#stepsLeft > 0 ? walkUp(this.#db, at, TURN_STEPS_MAX) : null;
      if (walked === null) above = { parentId: null, skippedCount: skippedCount + 1 };
      else {
        skippedCount += walked.stepsCount;
        this.#stepsLeft -= walked.stepsCount + 1;
        at = walked.id;
        if (walked.exists) above = { parentId: walked.id, skippedCount };
        else if (walked.madeFromId === null) above = { parentId: null, skippedCount: skippedCount + 1 };
      }
      if (this.#pacer.shouldYield()) await this.#pacer.yield();
    }
    if (this.#cached.size >= CACHED_COUNT_MAX) this.#cached.clear();
    this.#cached.set(deleted, above);
    return above;
  }
}
