import { KIND_FACTS } from "../../../domain/operation.ts";
import { countOf, countText, shortId } from "../../text/format.ts";
import { printable } from "../../text/printable.ts";
import type { Item } from "./folds.ts";
import type { ImageNode, RunRow, RunState } from "./forest.ts";
import type { Search } from "./search.ts";

export function nameOf({ id, tag }: Pick<ImageNode, "id" | "tag">): string {
  return printable(tag ?? shortId(id));
}

/** Elapsed time, such as `1:05`. @param milliseconds since the start; below 0 if the clocks differ */
export function clockText(milliseconds: number): string {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  const minutes = Math.floor(seconds / 60);
  const two = (value: number): string => String(value).padStart(2, "0");
  return minutes < 60
    ? `${minutes}:${two(seconds % 60)}`
    : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(seconds % 60)}`;
}

/** Labels common to all views. */
const STATES: Readonly<Record<RunState, string>> = {
  waiting: "Waiting",
  running: "Running",
  ended: "Done, no new image",
  failed: "Failed",
  cancelled: "Cancelled",
};

export function runName({ origin, state }: Pick<RunRow, "origin" | "state">): string {
  return origin === "instance" ? STATES[state] : `${KIND_FACTS[origin].label} · ${STATES[state]}`;
}

/** How the command of an image failed; null if it did not. */
export function failureOf({ exitCode, timedOut }: Pick<ImageNode, "exitCode" | "timedOut">): string | null {
  if (timedOut) return "Time limit";
  return exitCode === null || exitCode === 0 ? null : `Exit ${exitCode}`;
}

/** The title of an item. */
export function titleOf(item: Item): string {
  switch (item.kind) {
    case "image":
      return nameOf(item.image);
    case "run":
      return runName(item.run);
    case "steps":
      return countOf(item.images.length, "step");
    case "more":
      return `${countText(item.images.length)} more`;
  }
}

interface Sum {
  readonly failed: number;
  readonly addedBytes: number;
  readonly hits: number;
}

/** Sums over images that are folded. */
export function sumOf(images: readonly ImageNode[]): Sum {
  const sum = { failed: 0, addedBytes: 0, hits: 0 };
  for (const image of images) {
    if (failureOf(image) !== null) sum.failed++;
    if (image.isHit) sum.hits++;
    sum.addedBytes += image.addedBytes;
  }
  return sum;
}

interface Hidden {
  readonly images: number;
  readonly hits: number;
}

const hiddenOf = new WeakMap<Item, Hidden>();

/** The folded images of an item, and the matches among them. Each drawing creates new items. */
export function hiddenBy(item: Item): Hidden {
  const cached = hiddenOf.get(item);
  if (cached !== undefined) return cached;
  const hidden = countHidden(item);
  hiddenOf.set(item, hidden);
  return hidden;
}

function countHidden(item: Item): Hidden {
  if (item.kind === "image") {
    return item.isClosed ? { images: item.image.below, hits: item.image.hitsBelow } : { images: 0, hits: 0 };
  }
  if (item.kind === "steps") return { images: item.images.length, hits: sumOf(item.images).hits };
  if (item.kind === "run") return { images: 0, hits: 0 };
  let images = 0;
  let hits = 0;
  for (const image of item.images) {
    images += 1 + image.below;
    hits += (image.isHit ? 1 : 0) + image.hitsBelow;
  }
  return { images, hits };
}

/** True for an item without a match, also among its folded images. */
export function isPassedOver(item: Item, search: Search | null): boolean {
  if (search === null) return false;
  if (item.kind === "run") return !search.findsRun(item.run);
  return hiddenBy(item).hits === 0 && !(item.kind === "image" && item.image.isHit);
}

/** The text of an item for screen readers in addition to the visible one; may be empty. */
export function unseenOf(item: Item): string {
  const { images, hits } = hiddenBy(item);
  const folded = item.kind === "steps" ? ["folded"] : images === 0 ? [] : [`${countOf(images, "image")} folded`];
  const isHit = item.kind === "image" && item.image.isHit;
  return [...folded, ...(hits === 0 ? [] : [`${hits} found in it`]), ...(isHit ? ["found"] : [])].join(", ");
}
