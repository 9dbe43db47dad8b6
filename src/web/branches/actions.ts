import type { MenuItem } from "../parts/menu.tsx";
import type { Item } from "./model/folds.ts";
import type { ImageNode } from "./model/forest.ts";

export function linkToImage(id: string): string {
  return `/images/${id}`;
}

/** The changes of an image against another one. */
export function linkToComparison(id: string, against: string): string {
  return `/images/${id}?view=changes&against=${against}`;
}

export function linkToRunHere(id: string): string {
  return `/runs/new?image=${id}`;
}

/** The actions on an item. */
export interface ItemActions {
  may(scope: string): boolean;
  /** the focused image: only its branch is visible */
  readonly focusId: string | null;
  readonly onTag: (image: ImageNode) => void;
  readonly onCompare: (image: ImageNode) => void;
  readonly onFocus: (image: ImageNode | null) => void;
  readonly onCopy: (text: string) => void;
  readonly onDelete: (image: ImageNode) => void;
  readonly onToggle: (item: Item) => void;
  /** true for a step of a chain that was unfolded */
  isUnfolded(image: ImageNode): boolean;
  readonly onFoldChain: (image: ImageNode) => void;
}

/** The menu of an item. */
export function menuOf(item: Item, actions: ItemActions): MenuItem[] {
  if (item.kind === "run") {
    return [
      { label: "Open the run", icon: "run", href: `/runs/${item.run.id}`, keys: "Enter" },
      { label: "Copy the id", icon: "copy", onSelect: () => actions.onCopy(item.run.id) },
    ];
  }
  if (item.kind !== "image") {
    return [{ label: "Show them", icon: "plus", onSelect: () => actions.onToggle(item), keys: "Space" }];
  }
  const { image } = item;
  const isFocus = actions.focusId === image.id;
  const fold = { icon: "branch", keys: "Space", onSelect: () => actions.onToggle(item) } as const;
  return [
    { label: "Open", icon: "image", href: linkToImage(image.id), keys: "Enter" },
    ...(actions.may("instances:spawn")
      ? [{ label: "Run here", icon: "run", href: linkToRunHere(image.id) } as const]
      : []),
    ...(actions.may("images:tag")
      ? [
          {
            label: image.tag === null ? "Tag" : "Change the tag",
            icon: "tag",
            onSelect: () => actions.onTag(image),
          } as const,
        ]
      : []),
    { label: "Compare with another", icon: "compare", onSelect: () => actions.onCompare(image) },
    { label: "Copy the id", icon: "copy", onSelect: () => actions.onCopy(image.id), isApart: true },
    isFocus
      ? { label: "Show all branches", icon: "filter", onSelect: () => actions.onFocus(null) }
      : { label: "Show only this branch", icon: "filter", onSelect: () => actions.onFocus(image) },
    ...(image.children.length === 0 ? [] : [{ ...fold, label: item.isClosed ? "Unfold" : "Fold" }]),
    ...(actions.isUnfolded(image)
      ? [{ label: "Fold this chain", icon: "branch", onSelect: () => actions.onFoldChain(image) } as const]
      : []),
    ...(actions.may("images:delete")
      ? [
          {
            label: "Delete",
            icon: "trash",
            isDangerous: true,
            isApart: true,
            onSelect: () => actions.onDelete(image),
          } as const,
        ]
      : []),
  ];
}
