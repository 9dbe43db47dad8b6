import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ListingItem } from "../../../client/types.ts";
import { useShortcut } from "../../browser/keys.ts";
import { navigate } from "../../browser/router.ts";
import { addressOf } from "../../data/api.ts";
import { Slicer } from "../../data/slicer.ts";
import { ButtonLink, IconButton } from "../../parts/button.tsx";
import { Empty } from "../../parts/empty.tsx";
import { Select, useTyped } from "../../parts/field.tsx";
import { NameFilter } from "../../parts/form/name-filter.tsx";
import { VirtualRows } from "../../parts/lists/virtual-rows.tsx";
import { countOf, countText } from "../../text/format.ts";
import { type ImageLink, linkTo, linkWith } from "../link.ts";
import { childOf, type EncodedPath, parentOf, savedName, shownName } from "../paths.ts";
import { useRowPixels } from "../use-pixels.ts";
import { contentPath } from "./content.ts";
import { ENTRY_COLUMNS, entryCells, isOpenable } from "./entry.tsx";
import { orderOf, SORT_KEYS, type SortKey } from "./listing.ts";
import { ENTRIES_MAX, type Listing } from "./listing-loader.ts";

const SORT_LABELS: Readonly<Record<SortKey, string>> = {
  name: "Name",
  size: "Size",
  modified: "Time",
  mode: "Mode",
  owner: "Owner",
};

interface DirectoryProps {
  readonly link: ImageLink;
  readonly listing: Listing;
  readonly isLoading: boolean;
  /** the previous path: the initial row, if it is one of the entries */
  readonly before: EncodedPath | null;
}

/** The entries of a directory. */
export function Directory({ link, listing, isLoading, before }: DirectoryProps) {
  const { image, path, fields } = link;
  const sort = SORT_KEYS.find((key) => key === fields.get("sort")) ?? "name";
  const isDescending = fields.get("down") === "1";
  const [filter, setFilter] = useTyped(fields.get("filter") ?? "", (text) =>
    navigate(linkWith(link, { filter: text }), { replace: true }),
  );
  const order = useOrder(listing, sort, isDescending, filter);
  const items = (index: number): ListingItem | undefined =>
    listing.items[order === null ? index : (order[index] ?? -1)];
  const count = order?.length ?? listing.items.length;
  const rowHeight = useRowPixels();
  const { active, setActive } = useActiveRow(order, () => rowOf(listing, order, path, before));
  const open = (index: number) => {
    const item = items(index);
    if (item !== undefined && isOpenable(item)) navigate(linkTo(image, "files", childOf(path, item)));
  };
  return (
    <>
      <DirectoryTools link={link} filter={filter} onFilter={setFilter} sort={sort} isDescending={isDescending} />
      {listing.isComplete && listing.items.length === 0 ? (
        <Empty title="This directory is empty" />
      ) : listing.isComplete && count === 0 ? (
        <Empty title="No matching names" text="Search covers the directories below, too." />
      ) : (
        <VirtualRows
          label="Files"
          class="image-listing"
          columns={ENTRY_COLUMNS}
          count={count}
          rowHeight={rowHeight}
          active={active}
          onActive={setActive}
          onOpen={open}
          cells={(index) => entryCells(items(index), (item) => linkTo(image, "files", childOf(path, item)))}
        />
      )}
      <p class="row wrap gap-2 small tabular muted" role="status">
        {footOf(listing, count, isLoading)}
      </p>
    </>
  );
}

/**
 * The active row. The order arrives after the entries, and changes: the active entry stays the same as long as it is
 * visible.
 * @param begin the row before the first move
 */
function useActiveRow(order: Uint32Array | null, begin: () => number) {
  const [active, setActive] = useState(0);
  const hasMoved = useRef(false);
  const last = useRef(order);
  useLayoutEffect(() => {
    const orderBefore = last.current;
    last.current = order;
    setActive((row) => {
      if (!hasMoved.current || order === null) return begin();
      return Math.max(0, order.indexOf(orderBefore === null ? row : (orderBefore[row] ?? -1)));
    });
  }, [order]);
  const move = (row: number) => {
    hasMoved.current = true;
    setActive(row);
  };
  return { active, setActive: move };
}

/** The row of a path that is an entry of the directory; otherwise the first one. */
function rowOf(listing: Listing, order: Uint32Array | null, path: EncodedPath, entry: EncodedPath | null): number {
  if (entry === null || order === null || parentOf(entry) !== path) return 0;
  const name = shownName(entry);
  const index = listing.items.findIndex(
    (item) => (item.name_base64 !== undefined || item.name === name) && childOf(path, item) === entry,
  );
  return Math.max(0, order.indexOf(index));
}

function footOf({ items, isCut }: Listing, count: number, isLoading: boolean): string {
  if (isLoading) return `${countText(items.length)} entries so far`;
  if (isCut) return `The first ${countText(ENTRIES_MAX)} entries of more. The search finds the others by name.`;
  const all = countOf(items.length, "entry", "entries");
  return count === items.length ? all : `${countText(count)} of ${all}`;
}

/** The order of the entries; null until it is computed. */
function useOrder(listing: Listing, key: SortKey, isDescending: boolean, filter: string): Uint32Array | null {
  const [computed, setComputed] = useState<{ readonly items: unknown; readonly order: Uint32Array } | null>(null);
  const { items, isComplete } = listing;
  useEffect(() => {
    if (!isComplete) return;
    const leaving = new AbortController();
    orderOf(items, { key, isDescending }, filter, new Slicer({ signal: leaving.signal })).then(
      (order) => {
        if (!leaving.signal.aborted) setComputed({ items, order });
      },
      // The component needs another order, or was removed.
      () => undefined,
    );
    return () => leaving.abort();
  }, [items, isComplete, key, isDescending, filter]);
  return computed?.items === items ? computed.order : null;
}

interface ToolsProps {
  readonly link: ImageLink;
  readonly filter: string;
  readonly onFilter: (filter: string) => void;
  readonly sort: SortKey;
  readonly isDescending: boolean;
}

function DirectoryTools({ link, filter, onFilter, sort, isDescending }: ToolsProps) {
  const { image, path } = link;
  const place = useRef<HTMLDivElement>(null);
  useShortcut({ keys: "/", text: "Filter by name", group: "Files" }, () =>
    place.current?.querySelector("input")?.focus(),
  );
  const archive = useMemo(() => addressOf(contentPath(image, path, "archive")), [image, path]);
  return (
    <div class="image-tools flex wrap items-end gap-2" ref={place}>
      <div class="image-tools-wide">
        <NameFilter value={filter} onValue={onFilter} />
      </div>
      <Select
        label="Order by"
        isLabelHidden
        value={sort}
        choices={SORT_KEYS.map((value) => ({ value, label: `By ${SORT_LABELS[value].toLowerCase()}` }))}
        onValue={(value) => navigate(linkWith(link, { sort: value === "name" ? null : value }), { replace: true })}
      />
      <IconButton
        icon={isDescending ? "down" : "up"}
        label={isDescending ? "Largest first" : "Smallest first"}
        tone="plain"
        aria-pressed={isDescending}
        onClick={() => navigate(linkWith(link, { down: isDescending ? null : 1 }), { replace: true })}
      />
      <ButtonLink icon="download" href={archive} download={`${savedName(path)}.tar`}>
        Archive
      </ButtonLink>
    </div>
  );
}
