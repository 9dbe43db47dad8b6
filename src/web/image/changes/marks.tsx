import { classes } from "../../parts/classes.ts";
import { countOf, countText } from "../../text/format.ts";
import type { ChangeCounts } from "./change-tree.ts";

const CHANGE_MARKS = { added: "+", changed: "~", removed: "−" } as const;

/** A sign in addition to the colour, for readers who do not see colours. */
export function ChangeMark({ change }: { readonly change: keyof typeof CHANGE_MARKS | null }) {
  if (change === null) return <span class="image-mark fixed rigid strong" />;
  return (
    <span class={classes("image-mark fixed rigid strong", `image-change-${change}`)} title={change}>
      <span aria-hidden="true">{CHANGE_MARKS[change]}</span>
      <span class="visually-hidden">{change}</span>
    </span>
  );
}

interface CountsProps {
  readonly counts: ChangeCounts;
  /** true: with words, for a line of text */
  readonly isLong?: boolean;
}

/** The number of differences. */
export function Counts({ counts: { added, changed, removed }, isLong }: CountsProps) {
  if (isLong === true) {
    const all = countOf(added + changed + removed, "difference");
    return <>{`${all}: ${countText(added)} added, ${countText(changed)} changed, ${countText(removed)} removed`}</>;
  }
  return (
    <span class="image-counts gap-3 small number">
      {(["added", "changed", "removed"] as const).map((change) => {
        const count = { added, changed, removed }[change];
        return count === 0 ? null : (
          <span key={change} class={`image-change-${change}`} title={`${countText(count)} ${change}`}>
            {CHANGE_MARKS[change]}
            {countText(count)}
            <span class="visually-hidden"> {change}</span>
          </span>
        );
      })}
    </span>
  );
}
