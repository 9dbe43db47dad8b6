import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Link } from "../browser/router.ts";

export interface Tab {
  readonly id: string;
  readonly label: ComponentChildren;
  /** number of items in the tab */
  readonly count?: number | undefined;
  /** the link that shows it */
  readonly href: string;
}

export interface TabsProps {
  readonly label: string;
  readonly tabs: readonly Tab[];
  /** id of the present tab */
  readonly current: string;
}

/** Parts of a view, of which one is shown. They are links: which part is shown stands in the address. */
export function Tabs({ label, tabs, current }: TabsProps) {
  const row = useRef<HTMLElement>(null);
  // A narrow window does not show them all.
  useEffect(() => {
    const tab = row.current?.querySelector<HTMLElement>("[aria-current]");
    if (row.current !== null && tab !== undefined && tab !== null) {
      row.current.scrollLeft = tab.offsetLeft - (row.current.clientWidth - tab.clientWidth) / 2;
    }
  }, [current]);
  return (
    <nav ref={row} class="tabs flex gap-1 relative" aria-label={label}>
      {tabs.map(({ id, label: text, count, href }) => (
        <Link
          key={id}
          class="tab inline-row gap-2 rigid nowrap medium relative quiet"
          href={href}
          aria-current={id === current ? "page" : undefined}
        >
          {text}
          {count === undefined ? null : <span class="tab-count muted tabular">{count}</span>}
        </Link>
      ))}
    </nav>
  );
}
