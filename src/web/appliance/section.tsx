import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

export interface SectionProps {
  readonly heading: string;
  /** one sentence below the heading */
  readonly about?: ComponentChildren;
  /** buttons at the end of the line of the heading */
  readonly actions?: ComponentChildren;
  readonly children?: ComponentChildren;
}

/** A part of a view under a heading of its own. */
export function Section({ heading, about, actions, children }: SectionProps) {
  const id = useId();
  return (
    <section class="appliance-section stack gap-3 shrink" aria-labelledby={id}>
      <div class="row wrap between gap-2-4">
        <h2 id={id}>{heading}</h2>
        {actions}
      </div>
      {about === undefined ? null : <p class="muted">{about}</p>}
      {children}
    </section>
  );
}
