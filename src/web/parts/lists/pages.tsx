import { countText } from "../../text/format.ts";
import { ButtonLink } from "../button.tsx";

/** Rows per page. One more is read, to detect a further page. */
export const PAGE_ROWS = 50;

/** The offset in a link; 0 if it has none. */
export function offsetOf(parameters: URLSearchParams): number {
  const offset = Math.trunc(Number(parameters.get("from") ?? 0));
  return Number.isSafeInteger(offset) && offset > 0 ? offset : 0;
}

export interface PagesProps {
  readonly offset: number;
  /** rows that were read, `PAGE_ROWS + 1` at most */
  readonly count: number;
  /** the link to the page that begins at an offset */
  readonly link: (offset: number) => string;
}

/** Links to newer and older rows; nothing if all are on one page. */
export function Pages({ offset, count, link }: PagesProps) {
  if (offset === 0 && count <= PAGE_ROWS) return null;
  const rowCount = Math.min(count, PAGE_ROWS);
  return (
    <nav class="pages row gap-3" aria-label="Pages">
      {offset === 0 ? null : (
        <ButtonLink icon="left" href={link(Math.max(0, offset - PAGE_ROWS))}>
          Newer
        </ButtonLink>
      )}
      <span class="muted number">
        {rowCount === 0 ? "None" : `${countText(offset + 1)} to ${countText(offset + rowCount)}`}
      </span>
      {count > PAGE_ROWS ? (
        <ButtonLink icon="right" href={link(offset + PAGE_ROWS)}>
          Older
        </ButtonLink>
      ) : null}
    </nav>
  );
}
