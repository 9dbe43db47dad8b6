import { answerOf } from "../../../client/client.ts";
import type { DiffItem } from "../../../client/types.ts";
import { api } from "../../data/api.ts";
import { Slicer } from "../../data/slicer.ts";
import { type ChangeNode, changeTree } from "./change-tree.ts";

/** Differences per request, and the number that is read by default. */
const PAGE_COUNT = 1000;
export const ITEMS_STEP = 20_000;

export interface Changes {
  readonly root: ChangeNode;
  readonly count: number;
  /** image with which it was compared; undefined: with an empty one */
  readonly against: string | undefined;
  /** true: there are more differences */
  readonly hasMore: boolean;
  readonly isComplete: boolean;
}

/**
 * Reads the differences of two images.
 * @param against null: the parent
 * @throws ResponseError, UnreachableError; the reason of the signal
 */
export async function readChanges(
  { image, against, itemsMax }: { readonly image: string; readonly against: string | null; readonly itemsMax: number },
  signal: AbortSignal,
  tell: (changes: Changes) => void,
): Promise<Changes> {
  const items: DiffItem[] = [];
  const slicer = new Slicer({ signal });
  let cursor: string | undefined;
  let drawnAt = performance.now();
  for (;;) {
    const query = {
      limit: PAGE_COUNT,
      about: true,
      ...(against === null ? {} : { against }),
      ...(cursor === undefined ? {} : { cursor }),
    };
    const page = await answerOf(api.v1.images({ uuid: image }).diff.get({ query, fetch: { signal } }));
    items.push(...page.items);
    cursor = page.next;
    const hasMore = cursor !== undefined;
    const isComplete = !hasMore || items.length >= itemsMax;
    // Each tree is built from all differences so far: at most one in 500 ms.
    if (!isComplete && performance.now() - drawnAt < 500) continue;
    const changes = {
      root: await changeTree(items, slicer),
      count: items.length,
      against: page.against,
      hasMore,
      isComplete,
    };
    if (isComplete) return changes;
    drawnAt = performance.now();
    tell(changes);
  }
}
