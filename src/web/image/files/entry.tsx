import type { ListingItem } from "../../../client/types.ts";
import { Link } from "../../browser/router.ts";
import { Age, Bytes } from "../../parts/figure.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { Icon, type IconName } from "../../parts/icon.tsx";
import { shownText } from "../paths.ts";
import { modeText } from "./mode.ts";

/** The columns of {@link entryCells}. */
export const ENTRY_COLUMNS = [
  { id: "name", label: "Name" },
  { id: "size", label: "Size", isFigure: true },
  { id: "mode", label: "Mode" },
  { id: "owner", label: "Owner", isFigure: true },
  { id: "modified", label: "Modified", isFigure: true },
];

/** Whether an entry has a view of its own. */
export function isOpenable({ type }: ListingItem): boolean {
  return type === "file" || type === "directory" || type === "symlink";
}

const ICONS: Readonly<Record<ListingItem["type"], IconName>> = {
  directory: "folder",
  file: "file",
  symlink: "link",
  block: "disk",
  char: "terminal",
  fifo: "network",
  socket: "network",
};

/** The cells of an entry of a directory. @param hrefOf the link of an entry that can be opened */
export function entryCells(item: ListingItem | undefined, hrefOf: (item: ListingItem) => string) {
  if (item === undefined) return [];
  return [
    <EntryName key="name" item={item} hrefOf={hrefOf} />,
    item.is_regular ? <Bytes key="size" value={item.size} /> : "",
    <code key="mode" title={`mode ${item.mode}`}>
      {modeText(item.type, item.mode)}
    </code>,
    <span key="owner" class="number">
      {item.uid}:{item.gid}
    </span>,
    <Age key="modified" at={item.modified_at} />,
  ];
}

function EntryName(props: { readonly item: ListingItem; readonly hrefOf: (item: ListingItem) => string }) {
  const { item, hrefOf } = props;
  const name = <GuestText text={shownText(item.name, item.name_base64)} hasTitle />;
  return (
    <span class={`image-entry image-entry-${item.type} row gap-2 shrink`}>
      <Icon name={ICONS[item.type]} />
      {isOpenable(item) ? (
        <Link href={hrefOf(item)} tabIndex={-1}>
          {name}
        </Link>
      ) : (
        <>
          {name}
          <span class="muted">
            {item.type === "char" ? "character device" : item.type === "block" ? "block device" : item.type}
          </span>
        </>
      )}
      {item.symlink_to === undefined ? null : (
        <span class="image-target shrink muted">
          <span aria-hidden="true">→ </span>
          <span class="visually-hidden">leads to </span>
          <GuestText text={shownText(item.symlink_to, item.symlink_to_base64)} hasTitle />
        </span>
      )}
    </span>
  );
}
