import { classes } from "./classes.ts";

export interface SkeletonProps {
  /** expected number of lines */
  readonly lines?: number;
  /** for screen readers */
  readonly label?: string;
  readonly class?: string;
}

/** A placeholder for loading content. It appears after a moment, so that fast loads do not flicker. */
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
