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
import { type StageControl, TreeView } from "./tree-view.tsx";
import { useBranches } from "./use-branches.ts";
import { useHandling } from "./use-handling.ts";
import { useLook } from "./use-look.ts";
import { KEY_ZOOM, useTreeKeys } from "./use-tree-keys.ts";

/** Begins to load the images before the view is shown. */
export const prepare = openEarly;

/** The forest of images: what was made from what, and what runs now. */
export function View() {
  const loaded = useBranches();
  const look = useLook(loaded);
  const [isImporting, setImporting] = useState(false);
  const { may } = useSession();
  const { drawing, problem, reload } = loaded;
  const isEmpty = drawing.isComplete && drawing.layout.items.length === 0 && look.focusId === null;
  const isRefused = problem !== undefined && !drawing.isThere;
  const importing = may("images:import") ? (
    <Button icon="download" onClick={() => setImporting(true)}>
      Import an image
    </Button>
  ) : null;
  return (
    <>
      <div class="full branches">
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
            <MissingNote drawing={drawing} id={look.namedId} onEnd={() => look.select(null, false)} />
            <NoImages onImport={() => setImporting(true)} />
          </>
        ) : null}
        {isEmpty || isRefused ? null : <Forest loaded={loaded} look={look} />}
      </div>
      {isImporting ? <ImportDialog onClose={() => setImporting(false)} /> : null}
    </>
  );
}

interface ForestProps {
  readonly loaded: ReturnType<typeof useBranches>;
  readonly look: ReturnType<typeof useLook>;
}

function Forest({ loaded, look }: ForestProps) {
  const { drawing } = loaded;
  const control = useRef<StageControl>(null);
  const handling = useHandling(loaded, look);
  const { active, deeds, compared } = handling;
  const onKeyDown = useTreeKeys({
    drawing,
    active,
    isList: look.isList,
    ...handling.hands,
    onMenu: (item) => handling.openMenu(item, null),
    onZoom: (factor) => control.current?.zoom(factor),
    onFit: () => control.current?.fit(),
  });
  const form = {
    drawing,
    activeKey: active?.key ?? null,
    comparedKey: compared?.id ?? null,
    shown: look.shown,
    ...handling.hands,
    onMenu: handling.openMenu,
    onKeyDown,
  };
  return (
    <>
      <Toolbar
        look={look}
        loaded={loaded}
        onHit={handling.goToHit}
        onNewest={handling.goToNewest}
        onZoom={(isIn) => control.current?.zoom(isIn ? KEY_ZOOM : 1 / KEY_ZOOM)}
        onFit={() => control.current?.fit()}
      />
      {compared === null ? null : <CompareNote image={compared} onCancel={() => deeds.onCompare(compared)} />}
      <FocusNote drawing={drawing} focusId={look.focusId} onEnd={() => deeds.onFocus(null)} />
      {active === undefined ? <MissingNote drawing={drawing} id={look.namedId} onEnd={handling.deselect} /> : null}
      <div class="branches-body">
        <div class="branches-panes">
          {drawing.isThere ? null : <Skeleton class="branches-skeleton" lines={9} label="Loading the branches" />}
          {look.isList ? <ListView {...form} /> : <TreeView {...form} control={control} />}
          {active === undefined ? null : (
            <aside class="branches-details" aria-label="Selected">
              <span class="branches-details-close">
                <IconButton icon="close" label="Close the details" onClick={handling.deselect} />
              </span>
              <Details item={active} deeds={deeds} onReveal={look.reveal} />
            </aside>
          )}
        </div>
      </div>
      {handling.menu === null ? null : (
        <MenuList
          label="Actions"
          items={menuOf(handling.menu.item, deeds)}
          at={handling.menu.at}
          onClose={handling.closeMenu}
        />
      )}
      {handling.tagging === null ? null : (
        <TagDialog image={handling.tagging} forest={drawing.forest} onClose={handling.closeDialogs} />
      )}
      {handling.deleting === null ? null : <DeleteDialog image={handling.deleting} onClose={handling.closeDialogs} />}
    </>
  );
}
