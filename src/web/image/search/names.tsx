import type { FoundEntries } from "../../../client/types.ts";
import { Link, navigate } from "../../browser/router.ts";
import { useLoaded } from "../../data/resource.ts";
import { Empty } from "../../parts/empty.tsx";
import { Bytes } from "../../parts/figure.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { Icon } from "../../parts/icon.tsx";
import { VirtualRows } from "../../parts/lists/virtual-rows.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { countOf, countText } from "../../text/format.ts";
import { type ImageLink, linkTo } from "../link.ts";
import { pathFrom, shownPath } from "../paths.ts";
import { useRowPixels } from "../use-pixels.ts";
import { NAMES_MAX, searchNames } from "./search-run.ts";

/** The entries whose names match. */
export function Names({ link, glob }: { readonly link: ImageLink; readonly glob: string }) {
  const { image, path } = link;
  const rowHeight = useRowPixels();
  const { value, problem, reload } = useLoaded<FoundEntries>(`${image} ${path} ${glob}`, (signal) =>
    searchNames({ image, path, glob }, signal),
  );
  if (problem !== undefined) return <ProblemNote problem={problem} title="The search failed" onRetry={reload} />;
  const items = value?.items ?? [];
  const open = (index: number) => {
    const item = items[index];
    if (item !== undefined) navigate(linkTo(image, "files", pathFrom(item)));
  };
  return (
    <>
      <p class="row wrap gap-2 small tabular muted" role="status">
        {value === undefined ? "Searching…" : foundText(value)}
      </p>
      {value !== undefined && items.length === 0 ? <Empty title="No matching names" /> : null}
      {items.length === 0 ? null : (
        <VirtualRows
          label="Entries"
          rowHeight={rowHeight}
          class="image-found"
          count={items.length}
          onOpen={open}
          cells={(index) => entryCells(image, items[index])}
        />
      )}
    </>
  );
}

function foundText({ items, truncated }: FoundEntries): string {
  const count = countOf(items.length, "entry", "entries");
  if (!truncated) return count;
  const why = items.length >= NAMES_MAX ? `at most ${countText(NAMES_MAX)} are shown` : "the search took too long";
  return `${count} · there may be more: ${why}`;
}

function entryCells(image: string, item: FoundEntries["items"][number] | undefined) {
  if (item === undefined) return [];
  const path = pathFrom(item);
  return [
    <span key="path" class="image-entry row gap-2 shrink">
      <Icon name={item.type === "directory" ? "folder" : item.type === "symlink" ? "link" : "file"} />
      <Link href={linkTo(image, "files", path)} tabIndex={-1}>
        <GuestText text={shownPath(path)} hasTitle />
      </Link>
    </span>,
    item.type === "file" ? <Bytes key="size" value={item.size} /> : "",
  ];
}
