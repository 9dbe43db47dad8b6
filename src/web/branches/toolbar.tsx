import { useRef } from "preact/hooks";
import { useShortcut } from "../browser/keys.ts";
import { Button, IconButton } from "../parts/button.tsx";
import { classes } from "../parts/classes.ts";
import { GuestText } from "../parts/guest-text.tsx";
import { Icon } from "../parts/icon.tsx";
import { Segments } from "../parts/segments.tsx";
import { countOf, countText, shortId } from "../text/format.ts";
import type { Drawing } from "./model/branches.ts";
import { HITS_OUT_MAX, NO_FOLDS } from "./model/folds.ts";
import type { ImageNode } from "./model/forest.ts";
import type { LoadedBranches } from "./use-branches.ts";
import type { ViewState } from "./use-view-state.ts";

/** Number of images and of running operations. */
export function Summary({ drawing, onOlder }: { readonly drawing: Drawing; readonly onOlder: () => void }) {
  const { forest, isThere, hasOlder } = drawing;
  if (!isThere) return <span>&nbsp;</span>;
  if (drawing.layout.items.length === 0) return null;
  const live = [...forest.runs.values()].filter(({ state }) => state === "running" || state === "waiting").length;
  return (
    <span class="number">
      {hasOlder ? "The newest " : ""}
      {countOf(forest.images.size, "image")}
      {live === 0 ? "" : ` · ${countText(live)} running or waiting`}
      {hasOlder ? (
        <>
          {" · "}
          <button type="button" class="text-button" onClick={onOlder}>
            Load older images
          </button>
        </>
      ) : null}
    </span>
  );
}

const FORMS = [
  { value: "tree", label: "Tree" },
  { value: "list", label: "List" },
] as const;

interface ToolbarProps {
  readonly view: ViewState;
  readonly loaded: LoadedBranches;
  readonly onHit: (isBack: boolean) => void;
  readonly onNewest: () => void;
  readonly onZoom: (isIn: boolean) => void;
  readonly onFit: () => void;
}

/** Search, form, folds and zoom. */
export function Toolbar({ view, loaded, onHit, onNewest, onZoom, onFit }: ToolbarProps) {
  const { branches } = loaded;
  const { isWhole } = branches.folds;
  return (
    <div class="row wrap gap-2" role="group" aria-label="Look of the branches">
      <Search view={view} drawing={loaded.drawing} onHit={onHit} />
      <Segments
        label="Show as"
        value={view.isList ? "list" : "tree"}
        choices={FORMS}
        onValue={(form) => view.chooseForm(form === "list")}
      />
      <Button tone="quiet" onClick={onNewest}>
        Newest
      </Button>
      <Button
        tone="quiet"
        aria-pressed={isWhole}
        onClick={() => {
          branches.folds = isWhole ? NO_FOLDS : { ...NO_FOLDS, isWhole: true };
        }}
      >
        {isWhole ? "Fold" : "Unfold all"}
      </Button>
      {view.isList ? null : (
        <span class="branches-zoom flex">
          <IconButton icon="minus" label="Zoom out" onClick={() => onZoom(false)} />
          <IconButton icon="plus" label="Zoom in" onClick={() => onZoom(true)} />
          <IconButton icon="fit" label="Fit the tree into the window" onClick={onFit} />
        </span>
      )}
    </div>
  );
}

interface SearchProps {
  readonly view: ViewState;
  readonly drawing: Drawing;
  readonly onHit: (isBack: boolean) => void;
}

function Search({ view, drawing, onHit }: SearchProps) {
  const input = useRef<HTMLInputElement>(null);
  useShortcut({ keys: "/", text: "Search the branches", group: "Branches" }, () => {
    input.current?.focus();
    input.current?.select();
  });
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter") onHit(event.shiftKey);
    else if (event.key === "Escape" && view.query !== "") view.search("");
    else if (event.key === "Escape") document.querySelector<HTMLElement>("[role=tree]")?.focus();
    else return;
    event.preventDefault();
  };
  return (
    <div class="branches-search relative row gap-2" role="search">
      <Icon name="search" />
      <input
        ref={input}
        class="input"
        type="search"
        aria-label="Search by tag, command or id"
        placeholder="Tag, command or id"
        autocomplete="off"
        spellcheck={false}
        maxLength={200}
        value={view.query}
        onInput={(event) => view.search(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <span class={classes("muted number", drawing.search === null && "visually-hidden")} role="status">
        {drawing.search === null ? "" : foundText(drawing.hits)}
      </span>
      {drawing.search === null || drawing.hits === 0 ? null : (
        <span class="flex">
          <IconButton icon="up" label="Previous hit" onClick={() => onHit(true)} />
          <IconButton icon="down" label="Next hit" onClick={() => onHit(false)} />
        </span>
      )}
    </div>
  );
}

function foundText(hits: number): string {
  if (hits === 0) return "Nothing found";
  return hits > HITS_OUT_MAX ? `${countText(hits)} found, ${HITS_OUT_MAX} shown` : `${countText(hits)} found`;
}

/** Asks for the second image of a comparison. */
export function CompareNote({ image, onCancel }: { readonly image: ImageNode; readonly onCancel: () => void }) {
  return (
    <div class="branches-banner row wrap gap-2-3" role="status">
      <Icon name="compare" />
      <p>
        Choose the image to compare with <GuestText text={image.tag ?? shortId(image.id)} isMono={image.tag === null} />
        .
      </p>
      <Button isSmall onClick={onCancel}>
        Cancel
      </Button>
    </div>
  );
}

interface FocusNoteProps {
  readonly drawing: Drawing;
  readonly focusId: string | null;
  readonly onEnd: () => void;
}

/** A note that only one branch is visible. */
export function FocusNote({ drawing, focusId, onEnd }: FocusNoteProps) {
  if (focusId === null || !drawing.isComplete) return null;
  const image = drawing.forest.images.get(focusId);
  return (
    <div class="branches-banner row wrap gap-2-3" role="status">
      <Icon name="filter" />
      <p>
        {image === undefined ? (
          "The branch that this link shows is not there any more. These are all branches."
        ) : (
          <>
            The branch of <GuestText text={image.tag ?? shortId(image.id)} isMono={image.tag === null} /> alone.
          </>
        )}
      </p>
      <Button isSmall onClick={onEnd}>
        Show all branches
      </Button>
    </div>
  );
}

interface MissingNoteProps {
  readonly drawing: Drawing;
  /** the image that the address names */
  readonly id: string | null;
  readonly onEnd: () => void;
}

/** A note that the image of a link is not among the branches. */
export function MissingNote({ drawing, id, onEnd }: MissingNoteProps) {
  if (id === null || !drawing.isComplete || drawing.forest.images.has(id)) return null;
  return (
    <div class="branches-banner row wrap gap-2-3" role="status">
      <Icon name="search" />
      <p>
        Image <GuestText text={shortId(id)} isMono /> is not here.{" "}
        {drawing.hasOlder
          ? "It may be older than the images that are loaded, it may have been deleted, or it belongs to another account."
          : "It may have been deleted, or it belongs to another account."}
      </p>
      <Button isSmall onClick={onEnd}>
        Close
      </Button>
    </div>
  );
}
