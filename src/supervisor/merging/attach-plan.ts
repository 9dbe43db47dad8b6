import type { LayerId } from "../../domain/ids.ts";

/** A layer of an image's chain. */
export interface ChainLayer {
  readonly id: LayerId;
  readonly sizeBytes: number;
  readonly entryCount: number;
}

/** A layer that shows what the layers above `belowId` up to `topId` show together. */
export interface StandIn extends ChainLayer {
  readonly belowId: LayerId;
  readonly topId: LayerId;
}

/** One disk of a plan: the layers of the chain from `first` to `last`, counted from the base, which is 0. */
export interface Segment extends ChainLayer {
  readonly first: number;
  readonly last: number;
}

/** Stands for more than one layer of the chain. */
export function isStandIn({ first, last }: Segment): boolean {
  return last > first;
}

/**
 * The fewest disks that show what all layers of `chain` (the base first) show, the lowest first; of several such
 * plans, one with the fewest bytes. The base always stands for itself.
 */
export function planAttach(chain: readonly ChainLayer[], standIns: readonly StandIn[]): Segment[] {
  const positions = new Map(chain.map(({ id }, position) => [id, position]));
  const endingAt = chain.map(({ id, sizeBytes, entryCount }, at): Segment[] => [
    { id, sizeBytes, entryCount, first: at, last: at },
  ]);
  for (const { belowId, topId, ...layer } of standIns) {
    const below = positions.get(belowId);
    const last = positions.get(topId);
    if (below === undefined || last === undefined || below >= last) continue;
    endingAt[last]?.push({ ...layer, first: below + 1, last });
  }
  // The best way to show the layers below a position: how many disks, how many bytes, and the last of them.
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
