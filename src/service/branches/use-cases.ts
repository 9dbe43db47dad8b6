import { type Deletion, previewDeletion } from "../../db/branches/deletion.ts";
import type { ImageId } from "../../domain/ids.ts";
import type { Envelope } from "../../domain/receipts/envelope.ts";
import { requireImage } from "../inspection/layers.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { type BranchesRequest, type BranchParts, readBranches } from "./branches.ts";
import type { ChangeStream } from "./change-stream.ts";
import { ChangeFeeds } from "./changes.ts";
import { type Blame, type BlameRequest, blame, type PathLog, type PathLogRequest, pathLog } from "./path-history.ts";
import { type PublicKey, type ReceiptRequest, Receipts } from "./receipt.ts";

export interface BranchUseCases {
  /**
   * Reads the branches of an account: the operations that have not ended, and then the images, parents first.
   * @throws ApiError `not_found` for the image of `before`; as `Accounts.wait` does
   */
  read(principal: Principal, request: BranchesRequest): Promise<BranchParts>;
  /**
   * Opens a stream of the changes of an account, until disposal.
   * @param signal ends a wait for changes
   * @throws ApiError `too_many_requests` when too many clients follow changes
   */
  changes(principal: Principal, signal: AbortSignal): ChangeStream;
  /**
   * The changes of a path in the lineage of an image, also of one that the image no longer has. A change of a directory is one
   * of itself, or of anything below it.
   * @throws ApiError `not_found` when no state has the path, or the first state of the page is gone; `invalid_path`; as
   *   `Accounts.wait` does
   */
  pathLog(principal: Principal, request: PathLogRequest): Promise<PathLog>;
  /** The last change of a file, or of each entry of a directory. @throws ApiError `not_found`, `invalid_path`; as `Accounts.wait` does */
  blame(principal: Principal, request: BlameRequest): Promise<Blame>;
  /**
   * A signed statement of how an image came to be. For its digest, all layers are read whose digests are not known yet.
   * @throws ApiError `not_found`, `conflict` for an image of too many steps; as `Accounts.wait` does
   */
  receipt(principal: Principal, request: ReceiptRequest): Promise<Envelope>;
  /** The public key that verifies receipts. */
  receiptKey(): Promise<PublicKey>;
  /** Computes the effect of deleting an image. @throws ApiError `not_found`; as `Scans.all` does */
  previewDeletion(principal: Principal, id: ImageId, signal: AbortSignal): Promise<Deletion>;
}

export function branchUseCases(parts: ServiceParts): BranchUseCases {
  const receipts = new Receipts(parts);
  const feeds = new ChangeFeeds(parts);
  return {
    read: (principal, request) => readBranches(parts, principal, request),
    previewDeletion: async (principal, id, signal) =>
      await previewDeletion(parts.db, requireImage(parts, principal, id), signal),
    pathLog: (principal, request) => pathLog(parts, principal, request),
    blame: (principal, request) => blame(parts, principal, request),
    receipt: (principal, request) => receipts.make(principal, request),
    receiptKey: () => receipts.key(),
    changes: (principal, signal) => feeds.open(principal, signal),
  };
}
