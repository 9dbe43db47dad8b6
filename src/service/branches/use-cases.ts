import { type Deletion, previewDeletion } from "../../db/branches/deletion.ts";
import type { ImageId } from "../../domain/ids.ts";
import { requireImage } from "../layers.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { WalkLimiter } from "../walk-limiter.ts";
import { type BranchesRequest, type BranchParts, readBranches } from "./branches.ts";
import { ChangeFeeds, type ChangeStream } from "./changes.ts";

/**
 * Previews of deletions of one account at a time. Each may walk all its layers in the thread that all accounts share, where
 * those that wait are answered in turn.
 */
const PREVIEW_LIMITS = { countMax: 2, waitMsMax: 30_000 };

export interface BranchUseCases {
  /**
   * Reads the branches of an account: the operations that have not ended, and then the images, parents first.
   * @throws ApiError `not_found` for the image of `before`; as `WalkLimiter.take` does
   */
  read(principal: Principal, request: BranchesRequest): Promise<BranchParts>;
  /**
   * Opens a stream of the changes of an account, until disposal.
   * @param signal ends a wait for changes
   * @throws ApiError `too_many_requests` when too many clients follow changes
   */
  changes(principal: Principal, signal: AbortSignal): ChangeStream;
  /** What the deletion of an image would do. @throws ApiError `not_found`; as `WalkLimiter.take` does */
  previewDeletion(principal: Principal, id: ImageId, signal: AbortSignal): Promise<Deletion>;
}

export function branchUseCases(parts: ServiceParts, replies: WalkLimiter): BranchUseCases {
  const feeds = new ChangeFeeds(parts);
  const previews = new WalkLimiter(PREVIEW_LIMITS);
  return {
    read: (principal, request) => readBranches(parts, replies, principal, request),
    async previewDeletion(principal, id, signal) {
      requireImage(parts, principal, id);
      using _place = await previews.take(principal.accountId, signal);
      return await previewDeletion(parts.db, requireImage(parts, principal, id));
    },
    changes: (principal, signal) => feeds.open(principal, signal),
  };
}
