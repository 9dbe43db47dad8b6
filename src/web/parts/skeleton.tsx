import { classes } from "./classes.ts";

export interface SkeletonProps {
  /** how many lines of text will be there */
  readonly lines?: number;
  /** what is loaded, for screen readers */
  readonly label?: string;
  readonly class?: string;
}

/** The place of what is being loaded. It shows up after a moment, so that what is quick does not flicker. */
export function Skeleton({ lines = 3, label = "Loading", class: name }: SkeletonProps) {
  return (
    <div class={classes("skeleton stack gap-3", name)} role="status">
      <span class="visually-hidden">{label}</span>
      {Array.from({ length: lines }, (_, index) => (
        <span key={index} class="skeleton-line" />
      ))}
    </div>
  );
}
