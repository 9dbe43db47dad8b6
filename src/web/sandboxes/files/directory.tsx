import { useMemo, useState } from "preact/hooks";
import type { ListingItem } from "../../../client/types.ts";
import { navigate } from "../../browser/router.ts";
import { addressOf } from "../../data/api.ts";
import { useSession } from "../../data/session.ts";
import { ENTRY_COLUMNS, entryCells, isOpenable } from "../../image/files/entry.tsx";
import { childOf, savedName, shownText } from "../../image/paths.ts";
import { useRowPixels } from "../../image/use-pixels.ts";
import { Button, IconButton } from "../../parts/button.tsx";
import { classes } from "../../parts/classes.ts";
import { Empty } from "../../parts/empty.tsx";
import { FileChooser, useFileDrop } from "../../parts/form/file-chooser.tsx";
import { NameFilter } from "../../parts/form/name-filter.tsx";
import { VirtualRows } from "../../parts/lists/virtual-rows.tsx";
import { type MenuItem, MenuList } from "../../parts/menu.tsx";
import { countOf, countText } from "../../text/format.ts";
import { printable } from "../../text/printable.ts";
import { linkTo } from "../link.ts";
import { contentPath, ENTRIES_MAX, type Listing, type Place } from "./calls.ts";
import { type EntryAsking, EntryQuestion } from "./entry-questions.tsx";
import { Uploads, useUploads } from "./uploads.tsx";

interface DirectoryProps {
  /** of the sandbox, as it stands in links */
  readonly id: string;
  readonly place: Place;
  readonly listing: Listing;
  readonly onChange: () => void;
}

/** A directory: its entries, with their actions, and a place to drop files. */
export function Directory({ id, place, listing, onChange }: DirectoryProps) {
  const { may } = useSession();
  const mayWrite = may("instances:exec");
  const [filter, setFilter] = useState("");
  const [asking, setAsking] = useState<EntryAsking | null>(null);
  const uploads = useUploads(place, onChange);
  const send = (files: readonly File[]) => {
    const names = new Set(listing.items.map(({ name }) => name));
    const replaced = files.filter(({ name }) => names.has(name));
    if (replaced.length === 0) uploads.add(files);
    else setAsking({ action: "replace", names: replaced.map(({ name }) => name), onConfirm: () => uploads.add(files) });
  };
  const { isOver, target } = useFileDrop(send, mayWrite);
  return (
    <div
      class={classes("image-file stack gap-3 fill shrink", isOver && "run-files-over")}
      role="group"
      aria-label="Directory"
      {...target}
    >
      <Tools filter={filter} onFilter={setFilter} onAsk={setAsking} onFiles={send} mayWrite={mayWrite} />
      <Uploads uploads={uploads} />
      <Entries id={id} place={place} listing={listing} filter={filter} onAsk={setAsking} mayWrite={mayWrite} />
      {asking === null ? null : (
        <EntryQuestion asking={asking} place={place} onClose={() => setAsking(null)} onChange={onChange} />
      )}
    </div>
  );
}

interface ToolsProps {
  readonly filter: string;
  readonly onFilter: (filter: string) => void;
  readonly onAsk: (asking: EntryAsking) => void;
  readonly onFiles: (files: readonly File[]) => void;
  readonly mayWrite: boolean;
}

function Tools({ filter, onFilter, onAsk, onFiles, mayWrite }: ToolsProps) {
  return (
    <div class="flex wrap items-end gap-2">
      <div class="image-tools-wide">
        <NameFilter value={filter} onValue={onFilter} />
      </div>
      {mayWrite ? (
        <>
          <FileChooser
            text="Upload"
            label="Files to upload"
            title="Files can be dropped on the list, too"
            onFiles={onFiles}
          />
          <Button icon="folder" onClick={() => onAsk({ action: "directory" })}>
            New directory
          </Button>
          <Button icon="file" onClick={() => onAsk({ action: "file" })}>
            New file
          </Button>
        </>
      ) : null}
    </div>
  );
}

interface EntriesProps extends Omit<DirectoryProps, "onChange"> {
  readonly filter: string;
  readonly onAsk: (asking: EntryAsking) => void;
  readonly mayWrite: boolean;
}

function Entries({ id, place, listing, filter, onAsk, mayWrite }: EntriesProps) {
  const [active, setActive] = useState(0);
  const [menu, setMenu] = useState<{ readonly item: ListingItem; readonly at: DOMRect } | null>(null);
  const rowHeight = useRowPixels();
  const items = useMemo(() => {
    const part = filter.trim().toLowerCase();
    return part === "" ? listing.items : listing.items.filter(({ name }) => name.toLowerCase().includes(part));
  }, [listing, filter]);
  const hrefOf = (item: ListingItem) => linkTo(id, "files", { path: childOf(place.path, item) });
  const onKey = (event: KeyboardEvent, index: number) => {
    const item = items[index];
    const action = item === undefined ? undefined : actionOf(event, mayWrite);
    if (item === undefined || action === undefined) return;
    event.preventDefault();
    if (action !== "menu") return onAsk({ action, item });
    const row = (event.currentTarget as Element).querySelector(".virtual-row-active");
    if (row !== null) setMenu({ item, at: row.getBoundingClientRect() });
  };
  if (items.length === 0) {
    return listing.items.length === 0 ? (
      <Empty title="This directory is empty" text={mayWrite ? "Files that are dropped here are uploaded." : ""} />
    ) : (
      <Empty title="No matching names" />
    );
  }
  return (
    <>
      <VirtualRows
        label="Files"
        class="image-listing"
        columns={ENTRY_COLUMNS}
        count={items.length}
        rowHeight={rowHeight}
        active={active}
        onActive={setActive}
        onOpen={(index) => {
          const item = items[index];
          if (item !== undefined && isOpenable(item)) navigate(hrefOf(item));
        }}
        onKey={onKey}
        cells={(index) => {
          const [name, ...rest] = entryCells(items[index], hrefOf);
          const item = items[index];
          if (item === undefined || name === undefined) return [];
          const open = (at: DOMRect) => setMenu({ item, at });
          return [<NameCell key="name" name={name} item={item} onMenu={open} />, ...rest];
        }}
      />
      <p class="small tabular muted" role="status">
        {footOf(listing, items.length)}
      </p>
      {menu === null ? null : (
        <MenuList
          label={actionsLabel(menu.item)}
          at={() => menu.at}
          items={itemsOf(menu.item, place, { onAsk, mayWrite })}
          onClose={() => setMenu(null)}
        />
      )}
    </>
  );
}

/** The action of a key on an entry. */
function actionOf({ key, shiftKey }: KeyboardEvent, mayWrite: boolean): "menu" | "rename" | "remove" | undefined {
  if (key === "." || key === "ContextMenu" || (key === "F10" && shiftKey)) return "menu";
  if (!mayWrite) return undefined;
  return key === "F2" ? "rename" : key === "Delete" ? "remove" : undefined;
}

function actionsLabel({ name, name_base64: bytes }: ListingItem): string {
  return `Actions on ${printable(shownText(name, bytes))}`;
}

interface NameCellProps {
  readonly name: preact.ComponentChild;
  readonly item: ListingItem;
  readonly onMenu: (at: DOMRect) => void;
}

function NameCell({ name, item, onMenu }: NameCellProps) {
  return (
    <span class="row gap-2">
      <span class="fill shrink">{name}</span>
      <IconButton
        class="button-small rigid"
        icon="more"
        label={actionsLabel(item)}
        tabIndex={-1}
        onClick={(event) => onMenu((event.currentTarget as Element).getBoundingClientRect())}
      />
    </span>
  );
}

function itemsOf(
  item: ListingItem,
  { sandbox, path }: Place,
  { onAsk, mayWrite }: Pick<EntriesProps, "onAsk" | "mayWrite">,
): MenuItem[] {
  const own = { sandbox, path: childOf(path, item) };
  const download = () => {
    const link = document.createElement("a");
    link.href = addressOf(contentPath(own));
    link.download = savedName(own.path);
    link.click();
  };
  return [
    { label: "Download", icon: "download", isDisabled: !item.is_regular, onSelect: download },
    {
      label: "Rename",
      icon: "edit",
      keys: "F2",
      isDisabled: !mayWrite,
      onSelect: () => onAsk({ action: "rename", item }),
    },
    {
      label: "Remove",
      icon: "trash",
      keys: "Delete",
      isDangerous: true,
      isDisabled: !mayWrite,
      onSelect: () => onAsk({ action: "remove", item }),
    },
  ];
}

function footOf({ items, isCut }: Listing, count: number): string {
  if (isCut) return `The first ${countText(ENTRIES_MAX)} entries of more.`;
  const all = countOf(items.length, "entry", "entries");
  return count === items.length ? all : `${countText(count)} of ${all}`;
}
