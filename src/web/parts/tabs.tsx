import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Link } from "../app/router.ts";

export interface Tab {
  readonly id: string;
  readonly label: ComponentChildren;
  /** how many things are behind it */
  readonly count?: number | undefined;
  /** the link that shows it; all tabs of a row have one, or none has */
  readonly href?: string;
}

export interface TabsProps {
  readonly label: string;
  readonly tabs: readonly Tab[];
  readonly current: string;
  /** for tabs without links; the panel is a `<TabPanel id>` */
  readonly onSelect?: (id: string) => void;
}

/** Parts of a view, of which one is shown: links where the part is in the address, otherwise tabs. */
export function Tabs({ label, tabs, current, onSelect }: TabsProps) {
  if (tabs.some((tab) => tab.href !== undefined)) return <LinkTabs label={label} tabs={tabs} current={current} />;
  return <ChoiceTabs label={label} tabs={tabs} current={current} onSelect={onSelect ?? (() => undefined)} />;
}

function LinkTabs({ label, tabs, current }: TabsProps) {
  const row = useRef<HTMLElement>(null);
  // In a narrow window it may lie beside what is seen of the row.
  useEffect(() => {
    row.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [current]);
  return (
    <nav ref={row} class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <Link key={tab.id} class="tab" href={tab.href ?? ""} aria-current={tab.id === current ? "page" : undefined}>
          <TabLabel {...tab} />
        </Link>
      ))}
    </nav>
  );
}

function ChoiceTabs({ label, tabs, current, onSelect }: Required<TabsProps>) {
  const row = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const at = tabs.findIndex((tab) => tab.id === current);
    const steps: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 };
    const step = steps[event.key];
    const next = step === undefined ? undefined : tabs.at(step % tabs.length);
    if (next === undefined) return;
    event.preventDefault();
    onSelect(next.id);
    row.current?.querySelector<HTMLElement>(`#tab-${next.id}`)?.focus();
  };
  return (
    <div ref={row} class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
      {tabs.map((tab) => (
        <button
          key={tab.id}
          type="button"
          class="tab"
          role="tab"
          id={`tab-${tab.id}`}
          aria-controls={`panel-${tab.id}`}
          aria-selected={tab.id === current}
          tabIndex={tab.id === current ? 0 : -1}
          onClick={() => onSelect(tab.id)}
        >
          <TabLabel {...tab} />
        </button>
      ))}
    </div>
  );
}

function TabLabel({ label, count }: Tab) {
  return (
    <>
      {label}
      {count === undefined ? null : <span class="tab-count">{count}</span>}
    </>
  );
}

/** What a tab without a link shows. */
export function TabPanel({ id, children }: { readonly id: string; readonly children: ComponentChildren }) {
  return (
    <div class="tab-panel" role="tabpanel" id={`panel-${id}`} aria-labelledby={`tab-${id}`} tabIndex={0}>
      {children}
    </div>
  );
}
