import type { SavedState } from "../../../client/types.ts";

/** A point of the line of saved states. */
export interface Point {
  readonly state: SavedState;
  /** true: the head descends from it, or is it */
  readonly isOnPath: boolean;
  /** the state that it followed, if that is not the next one of the line */
  readonly follows: SavedState | null;
}

const REASON_TEXTS: Readonly<Record<string, string>> = {
  start: "Where it began",
  pause: "Paused",
  checkpoint: "Checkpoint",
  rollback: "Rolled back to an image",
  keep: "Kept before a rollback",
};

/** The reason of a saved state, as a title. */
export function reasonText({ reason }: Pick<SavedState, "reason">): string {
  return (Object.hasOwn(REASON_TEXTS, reason) ? REASON_TEXTS[reason] : undefined) ?? reason;
}

/** The line of the saved states. @param states newest first */
export function pointsOf(states: readonly SavedState[]): readonly Point[] {
  const bySeq = new Map(states.map((state) => [state.seq, state]));
  const path = new Set<number>();
  let step = states.find(({ is_head: isHead }) => isHead);
  while (step !== undefined && !path.has(step.seq)) {
    path.add(step.seq);
    step = step.parent === null ? undefined : bySeq.get(step.parent);
  }
  return states.map((state, index) => {
    const parent = state.parent === null ? undefined : bySeq.get(state.parent);
    const isNext = parent === undefined || states[index + 1] === parent;
    return { state, isOnPath: path.has(state.seq), follows: isNext ? null : parent };
  });
}
