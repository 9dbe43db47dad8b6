import type { LayerId } from "../../domain/ids.ts";

/** A layer of an image's chain. */
export interface ChainLayer {
  readonly id: LayerId;
  readonly sizeBytes: number;
  readonly entryCount: number;
}

/** A merged layer: it has the files of the layers above `belowId` up to and including `topId`. */
export interface MergedLayer extends ChainLayer {
  readonly belowId: LayerId;
  readonly topId: LayerId;
}

/** One disk of a plan. It has the layers at the positions `first` to `last` of the chain; the base is at 0. */
export interface Segment extends ChainLayer {
  readonly first: number;
  readonly last: number;
}

/** True for a merged layer. */
export function isMerged({ first, last }: Segment): boolean {
  return last > first;
}

/**
 * Finds the fewest disks that together have all layers of `chain`, whose base comes first. Of several such plans it chooses
 * one with the fewest bytes. The base is never replaced by a merged layer.
 * @returns the disks, the lowest first
 */
export function planAttach(chain: readonly ChainLayer[], mergedLayers: readonly MergedLayer[]): Segment[] {
  const positions = new Map(chain.map(({ id }, position) => [id, position]));
  const endingAt = chain.map(({ id, sizeBytes, entryCount }, at): Segment[] => [
    { id, sizeBytes, entryCount, first: at, last: at },
  ]);
  for (const { belowId, topId, ...layer } of mergedLayers) {
    const below = positions.get(belowId);
    const last = positions.get(topId);
    if (below === undefined || last === undefined || below >= last) continue;
    endingAt[last]?.push({ ...layer, first: below + 1, last });
  }
  // best[n] is the best plan for the lowest n layers: its number of disks, its bytes, and its top disk.
  const best: { readonly count: number; readonly bytes: number; readonly segment: Segment | null }[] = [
    { count: 0, bytes: 0, segment: null },
  ];
  for (const segments of endingAt) {
    const ways = segments.map((segment) => {
      const below = best[segment.first] as (typeof best)[number];
      return { count: below.count + 1, bytes: below.bytes + segment.sizeBytes, segment };
    });
    best.push(ways.reduce((a, b) => (b.count < a.count || (b.count === a.count && b.bytes < a.bytes) ? b : a)));
  }
  const plan: Segment[] = [];
  for (let at = chain.length; at > 0; ) {
    const { segment } = best[at] as { readonly segment: Segment };
    plan.push(segment);
    at = segment.first;
  }
  return plan.reverse();
}
