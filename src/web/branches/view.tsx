import "./branches.css";
import { useRef, useState } from "preact/hooks";
import { useSession } from "../data/session.ts";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { Button, IconButton } from "../parts/button.tsx";
import { MenuList } from "../parts/menu.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { menuOf } from "./actions.ts";
import { Details } from "./details.tsx";
import { DeleteDialog, TagDialog } from "./dialogs.tsx";
import { ImportDialog, NoImages } from "./import-dialog.tsx";
import { ListView } from "./list-view.tsx";
import { openEarly } from "./live-branches.ts";
import { CompareNote, FocusNote, MissingNote, Summary, Toolbar } from "./toolbar.tsx";
import { type StageControl, TreeView } from "./tree/tree-view.tsx";
import { useBranches } from "./use-branches.ts";
import { useItemActions } from "./use-item-actions.ts";
import { KEY_ZOOM, useTreeKeys } from "./use-tree-keys.ts";
import { useViewState } from "./use-view-state.ts";

/** Starts loading the images before the view is ready. */
export const prepare = openEarly;

/** The forest of images and running operations. */
export function View() {
  const loaded = useBranches();
  const view = useViewState(loaded);
  const [isImporting, setImporting] = useState(false);
  const { may } = useSession();
  const { drawing, problem, reload } = loaded;
  const isEmpty = drawing.isComplete && drawing.layout.items.length === 0 && view.focusId === null;
  const isRefused = problem !== undefined && !drawing.isThere;
  const importing = may("images:import") ? (
    <Button icon="download" onClick={() => setImporting(true)}>
      Import an image
    </Button>
  ) : null;
  return (
    <>
      <div class="full branches stack fill gap-4 shrink">
        <PageHeader
          heading="Branches"
          about={<Summary drawing={drawing} onOlder={loaded.loadOlder} />}
          actions={isEmpty ? null : importing}
        />
        {problem === undefined ? null : (
          <ProblemNote title="The branches could not be loaded" problem={problem} onRetry={reload} />
        )}
        {isEmpty ? (
          <>
            <MissingNote drawing={drawing} id={view.namedId} onEnd={() => view.select(null, false)} />
            <NoImages onImport={() => setImporting(true)} />
          </>
        ) : null}
        {isEmpty || isRefused ? null : <Forest loaded={loaded} view={view} />}
      </div>
      {isImporting ? <ImportDialog onClose={() => setImporting(false)} /> : null}
    </>
  );
}

interface ForestProps {
  readonly loaded: ReturnType<typeof useBranches>;
  readonly view: ReturnType<typeof useViewState>;
}

function Forest({ loaded, view }: ForestProps) {
  const { drawing } = loaded;
  const control = useRef<StageControl>(null);
  const items = useItemActions(loaded, view);
  const { active, actions, compared } = items;
  const onKeyDown = useTreeKeys({
    drawing,
    active,
    isList: view.isList,
    ...items.handlers,
    onMenu: (item) => items.openMenu(item, null),
    onZoom: (factor) => control.current?.zoom(factor),
    onFit: () => control.current?.fit(),
  });
  const form = {
    drawing,
    activeKey: active?.key ?? null,
    comparedKey: compared?.id ?? null,
    target: view.target,
    ...items.handlers,
    onMenu: items.openMenu,
    onKeyDown,
  };
  return (
    <>
      <Toolbar
        view={view}
        loaded={loaded}
        onHit={items.goToHit}
        onNewest={items.goToNewest}
        onZoom={(isIn) => control.current?.zoom(isIn ? KEY_ZOOM : 1 / KEY_ZOOM)}
        onFit={() => control.current?.fit()}
      />
      {compared === null ? null : <CompareNote image={compared} onCancel={() => actions.onCompare(compared)} />}
      <FocusNote drawing={drawing} focusId={view.focusId} onEnd={() => actions.onFocus(null)} />
      {active === undefined ? <MissingNote drawing={drawing} id={view.namedId} onEnd={items.deselect} /> : null}
      <div class="branches-body fill relative">
        <div class="branches-panes cover flex">
          {drawing.isThere ? null : <Skeleton class="branches-skeleton" lines={9} label="Loading the branches" />}
          {view.isList ? <ListView {...form} /> : <TreeView {...form} control={control} />}
          {active === undefined ? null : (
            <aside class="branches-details relative stack gap-4 rigid" aria-label="Selected">
              <span class="branches-details-close">
                <IconButton icon="close" label="Close the details" onClick={items.deselect} />
              </span>
              <Details item={active} actions={actions} onReveal={view.reveal} />
            </aside>
          )}
        </div>
      </div>
      {items.menu === null ? null : (
        <MenuList
          label="Actions"
          items={menuOf(items.menu.item, actions)}
          at={items.menu.at}
          onClose={items.closeMenu}
        />
      )}
      {items.tagging === null ? null : (
        <TagDialog image={items.tagging} forest={drawing.forest} onClose={items.closeDialogs} />
      )}
      {items.deleting === null ? null : <DeleteDialog image={items.deleting} onClose={items.closeDialogs} />}
    </>
  );
}
