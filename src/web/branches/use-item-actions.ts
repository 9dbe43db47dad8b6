import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { navigate } from "../browser/router.ts";
import { useSession } from "../data/session.ts";
import { copyText } from "../parts/copy-button.tsx";
import { useToast } from "../parts/toast.tsx";
import { type ItemActions, linkToComparison, linkToImage } from "./actions.ts";
import { type Drawing, foldedChain, toggled } from "./model/branches.ts";
import type { Item } from "./model/folds.ts";
import { type ImageNode, newestOf } from "./model/forest.ts";
import type { Layout } from "./model/layout.ts";
import { hitAfter } from "./model/navigation.ts";
import { searchOf } from "./model/search.ts";
import { idOf } from "./tree/tree-view.tsx";
import type { LoadedBranches } from "./use-branches.ts";
import type { ViewState } from "./use-view-state.ts";

/** The actions on items, and the menu and dialogs that they open. */
export function useItemActions({ branches, drawing }: LoadedBranches, view: ViewState) {
  const [menu, setMenu] = useState<{ readonly item: Item; readonly at: () => DOMRect } | null>(null);
  const [compared, setCompared] = useState<ImageNode | null>(null);
  const [tagging, setTagging] = useState<ImageNode | null>(null);
  const [deleting, setDeleting] = useState<ImageNode | null>(null);
  const { may } = useSession();
  const toast = useToast();
  const { active, goInto } = useActive(drawing, view);

  useFirstHit(drawing, view);
  const goToHit = useHits(drawing, active, view);
  useSuccessor(drawing, active, view);

  const onSelect = (item: Item): void => {
    view.select(item.key, item.kind === "image");
  };
  const onToggle = (item: Item): void => {
    // A folded node disappears when its images appear.
    const [first] = item.kind === "steps" || item.kind === "more" ? item.images : [];
    if (first === undefined) onSelect(item);
    else goInto(item, first);
    branches.folds = toggled(branches.folds, item);
  };
  const onOpen = (item: Item): void => {
    view.keep();
    if (item.kind === "run") navigate(`/runs/${item.run.id}`);
    else if (item.kind !== "image") onToggle(item);
    else if (compared !== null && compared !== item.image) navigate(linkToComparison(item.image.id, compared.id));
    else navigate(linkToImage(item.image.id));
  };
  const actions: ItemActions = {
    may,
    focusId: view.focusId,
    onTag: setTagging,
    onCompare: (image) => setCompared(image === compared ? null : image),
    onFocus: (image) => view.focus(image?.id ?? null),
    onCopy: (text) =>
      void copyText(text).then((isCopied) => toast(isCopied ? "Copied" : "The browser does not let this page copy.")),
    onDelete: setDeleting,
    onToggle,
    isUnfolded: (image) => branches.folds.unfolded.has(image.id),
    onFoldChain: (image) => {
      branches.folds = foldedChain(branches.folds, image);
    },
  };
  return {
    active,
    compared,
    tagging,
    deleting,
    menu,
    actions,
    handlers: {
      onToggle,
      onOpen,
      // The second image of a comparison is chosen by a click, and by Enter.
      onSelect,
      onPick: (item: Item) => (compared === null || item.kind !== "image" ? onSelect(item) : onOpen(item)),
      onEscape: () => setCompared(null),
    },
    openMenu: (item: Item, at: DOMRect | null) => {
      onSelect(item);
      setMenu({ item, at: () => at ?? document.getElementById(idOf(item))?.getBoundingClientRect() ?? new DOMRect() });
    },
    deselect: () => view.select(null, false),
    closeMenu: () => setMenu(null),
    closeDialogs: () => {
      setTagging(null);
      setDeleting(null);
    },
    goToNewest: () => {
      const newest = newestOf(drawing.forest.images.values(), 1)[0];
      if (newest !== undefined) view.reveal(newest.id);
    },
    goToHit,
  };
}

/** The item that keys act on. */
function useActive({ layout }: Drawing, view: ViewState) {
  /** a node that unfolds with the next drawing, which selects its first image; keys start at the node until then */
  const unfolding = useRef<{ readonly key: string; readonly first: string; readonly layout: Layout } | null>(null);
  const { key, first, layout: seen } = unfolding.current ?? {};
  const activeKey = seen === layout && first === view.selectedKey ? key : view.selectedKey;
  return {
    active: layout.byKey.get(activeKey ?? ""),
    goInto: (item: Item, image: ImageNode) => {
      unfolding.current = { key: item.key, first: image.id, layout };
      view.select(image.id, true);
    },
  };
}

/** Replaces the selection of a removed item: by the image of the run, otherwise by the parent of the item. */
function useSuccessor(drawing: Drawing, active: Item | undefined, view: ViewState): void {
  const last = useRef<Item | undefined>(undefined);
  // At once, because the next key moves from it.
  useLayoutEffect(() => {
    const gone = last.current;
    last.current = active;
    if (gone === undefined || active !== undefined || view.selectedKey !== gone.key) return;
    const successor = gone.kind === "run" ? drawing.layout.items.find((item) => madeBy(item, gone.run.id)) : undefined;
    const above = nearestAbove(drawing, gone);
    const next = successor ?? above;
    view.select(next?.key ?? null, next?.kind === "image");
  }, [drawing, active]);
}

function madeBy(item: Item, operation: string): boolean {
  return item.kind === "image" && item.image.operation === operation;
}

function nearestAbove({ layout }: Drawing, gone: Item): Item | undefined {
  for (let item = gone.parent; item !== null; item = item.parent) {
    const ancestor = layout.byKey.get(item.key);
    if (ancestor !== undefined) return ancestor;
  }
  return undefined;
}

/**
 * Moves to the next hit of the search. Enter during the search moves there when the search is done, unless the selection
 * has changed by then.
 */
function useHits(drawing: Drawing, active: Item | undefined, view: ViewState): (isBack: boolean) => void {
  const waiting = useRef<{ readonly isBack: boolean; readonly from: string | null } | null>(null);
  const isFound = (drawing.search?.text ?? null) === (searchOf(view.query)?.text ?? null);
  const go = (isBack: boolean) => {
    const hit = hitAfter(drawing.layout, active ?? null, isBack);
    if (hit !== null) view.reveal(hit.image.id);
  };
  useLayoutEffect(() => {
    const asked = waiting.current;
    if (asked === null || !isFound) return;
    waiting.current = null;
    if (asked.from === view.selectedKey) go(asked.isBack);
  }, [drawing]);
  return (isBack) => {
    if (isFound) go(isBack);
    else waiting.current = { isBack, from: view.selectedKey };
  };
}

/** Brings the first image that a search finds into view, once for each text. */
function useFirstHit(drawing: Drawing, view: ViewState): void {
  const shownFor = useRef<string | null>(null);
  useEffect(() => {
    const text = drawing.search?.text ?? null;
    if (text === shownFor.current || !drawing.isComplete) return;
    shownFor.current = text;
    const hit = text === null ? null : hitAfter(drawing.layout, null, false);
    if (hit !== null) view.show(hit.key);
  }, [drawing]);
}
