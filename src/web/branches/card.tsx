import { useSeconds } from "../browser/clock.ts";
import { classes } from "../parts/classes.ts";
import { Age, Bytes } from "../parts/figure.tsx";
import { Icon } from "../parts/icon.tsx";
import { kindLabel } from "../parts/status-mark.tsx";
import { bytesText, countText, durationText } from "../text/format.ts";
import { printable } from "../text/printable.ts";
import { memo } from "./memo.ts";
import type { Item } from "./model/folds.ts";
import type { ImageNode, RunRow } from "./model/forest.ts";
import { partsOf, type Search } from "./model/search.ts";
import { clockText, failureOf, hiddenBy, nameOf, runName, sumOf, titleOf, unseenOf } from "./model/text.ts";

/** Text of a guest on one line, with the matches of the search highlighted. */
export function Highlighted({
  text,
  search,
  isMono,
}: {
  readonly text: string;
  readonly search: Search | null;
  readonly isMono?: boolean;
}) {
  const parts = partsOf(printable(text), search);
  return (
    <bdi class={classes("guest-text", isMono && "mono")}>
      {parts.map((part, index) => (index % 2 === 1 ? <mark key={index}>{part}</mark> : part))}
    </bdi>
  );
}

export interface ContentProps {
  readonly item: Item;
  readonly search: Search | null;
  /** changes with the content of the item: each drawing creates new items */
  readonly version: string;
}

/** A text that changes whenever the item looks different. */
export function versionOf(item: Item): string {
  if (item.kind === "run") return `${item.run.state} ${item.run.since}`;
  const { images, hits } = hiddenBy(item);
  const own =
    item.kind === "image" ? `${item.image.tag ?? ""} ${item.image.isHit} ${item.isClosed} ${item.image.skipped}` : "";
  return `${own} ${images} ${hits}`;
}

/** The content of a card and of a row of the list. */
export const Content = memo(({ item, search }: ContentProps) => {
  if (item.kind === "image") return <ImageContent image={item.image} search={search} />;
  if (item.kind === "run") return <RunContent run={item.run} search={search} />;
  return <FoldContent item={item} />;
});

function ImageContent({ image, search }: { readonly image: ImageNode; readonly search: Search | null }) {
  const failure = failureOf(image);
  return (
    <>
      <span class={classes("branches-name row nowrap shrink", image.tag !== null && "branches-tag")}>
        {image.tag === null ? null : <Icon name="tag" />}
        <Highlighted text={nameOf(image)} search={search} isMono={image.tag === null} />
      </span>
      <Age class="branches-age" at={image.createdAt} />
      <span class="branches-command row nowrap shrink muted">
        {failure === null ? null : <span class="warning rigid medium">{failure}</span>}
        {image.command === null ? (
          <span class="branches-about">{kindLabel(image.origin)}</span>
        ) : (
          <Highlighted text={image.command} search={search} isMono />
        )}
      </span>
      <span class="branches-added">
        <Bytes value={image.addedBytes} isSigned />
      </span>
    </>
  );
}

function RunContent({ run, search }: { readonly run: RunRow; readonly search: Search | null }) {
  const isLive = run.state === "running" || run.state === "waiting";
  return (
    <>
      <span class="branches-name row nowrap shrink">
        <span class="branches-dot rigid" />
        {runName(run)}
      </span>
      {isLive ? <Clock since={run.since} isGrowing={run.state === "running"} /> : null}
      <span class="branches-command row nowrap shrink muted">
        {run.command === null ? null : <Highlighted text={run.command} search={search} isMono />}
      </span>
    </>
  );
}

/** Elapsed time, updated each second. */
function Clock({ since, isGrowing }: { readonly since: number; readonly isGrowing: boolean }) {
  const now = useSeconds();
  const passed = now - since;
  return (
    <>
      <span class="branches-age number" title={durationText(passed)}>
        {clockText(passed)}
      </span>
      {isGrowing ? <span class="branches-growth" style={{ transform: `scaleX(${grown(passed)})` }} /> : null}
    </>
  );
}

/** Progress of a run: its end is unknown, so the bar slows down and never fills the card. */
function grown(milliseconds: number): number {
  return Number((1 - 1 / (1 + Math.max(0, milliseconds) / GROWING_MS)).toFixed(3));
}

/** Time after which the bar of a run is half full, in `milliseconds`. */
const GROWING_MS = 45_000;

function FoldContent({ item }: { readonly item: Extract<Item, { readonly kind: "steps" | "more" }> }) {
  const { failed, addedBytes } = sumOf(item.images);
  const { images } = hiddenBy(item);
  const about = [
    ...(failed === 0 ? [] : [`${countText(failed)} failed`]),
    item.kind === "more" && images > item.images.length ? `${countText(images)} images` : `+${bytesText(addedBytes)}`,
  ];
  return (
    <>
      <span class="branches-name row nowrap shrink">{titleOf(item)}</span>
      <span class="branches-command row nowrap shrink muted branches-about">{about.join(" · ")}</span>
    </>
  );
}

/** The number of folded images, or of the matches among them. */
export function countShown(item: Item): string {
  const { images, hits } = hiddenBy(item);
  if (hits > 0) return `${countText(hits)} found`;
  return item.kind === "image" && item.isClosed ? countText(images) : "";
}

/** The rest of the name of an item. */
export function Unseen({ item }: { readonly item: Item }) {
  const text = unseenOf(item);
  return text === "" ? null : <span class="visually-hidden">, {text}</span>;
}

/** The number of folded images of an item; a click unfolds them. */
export function FoldMark({ item }: { readonly item: Item }) {
  const { hits } = hiddenBy(item);
  if (item.kind === "run" || (item.kind === "image" && item.image.children.length === 0)) return null;
  const isOpen = item.kind === "image" && !item.isClosed;
  return (
    <span
      class={classes(
        "branches-fold row nowrap tabular",
        hits > 0 && "branches-fold-found",
        isOpen && "branches-fold-open",
      )}
      data-act="toggle"
      aria-hidden="true"
    >
      <span class="branches-fold-count">{countShown(item)}</span>
      <Icon name={isOpen ? "left" : "right"} />
    </span>
  );
}
