import { Component, type ComponentChildren, type ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Problem, problemOf } from "../data/problem.ts";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { Button } from "../parts/button.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import type { Place, ViewModule } from "./routes.tsx";

const loaded = new Map<string, ComponentType>();
const RELOADED = "coppice.reloaded";

/** Loads the chunk of a view in advance. The view itself reports a failure. */
export async function preload(place: Place): Promise<ViewModule | null> {
  try {
    const module = await place.load();
    loaded.set(place.name, module.View);
    return module;
  } catch {
    // TypeError: the chunk cannot be loaded; the view reports it when it is opened.
    return null;
  }
}

/** The view of a place. */
export function ViewSlot({ place }: { readonly place: Place }) {
  const [, redraw] = useState(0);
  const [problem, setProblem] = useState<Problem>();
  const View = loaded.get(place.name);
  useEffect(() => {
    if (View !== undefined) return;
    let isLeft = false;
    setProblem(undefined);
    place.load().then(
      (module) => {
        loaded.set(place.name, module.View);
        sessionStorage.removeItem(RELOADED);
        if (!isLeft) redraw((count) => count + 1);
      },
      (error: unknown) => {
        if (!isLeft && !reloadOnce()) setProblem(problemOf(error));
      },
    );
    return () => {
      isLeft = true;
    };
  }, [place]);
  if (View !== undefined) {
    return (
      <Boundary key={place.name}>
        <View />
      </Boundary>
    );
  }
  if (problem === undefined) return <Skeleton class="view-skeleton" lines={6} />;
  return <Failed problem={new Problem("A part of the page could not be loaded.", { code: "page", cause: problem })} />;
}

/**
 * Reloads the page once: an upgraded appliance has chunks of other names, which only its new index page knows.
 * @returns false if the page was reloaded before, without success
 */
function reloadOnce(): boolean {
  if (sessionStorage.getItem(RELOADED) !== null) return false;
  sessionStorage.setItem(RELOADED, "yes");
  location.reload();
  return true;
}

function Failed({ problem }: { readonly problem: Problem }) {
  return (
    <>
      <PageHeader heading="This view failed" />
      <ProblemNote problem={problem} />
      <p>
        <Button icon="reload" onClick={() => location.reload()}>
          Reload the page
        </Button>
      </p>
    </>
  );
}

/** Shows an error in place of a failed view, within the frame. */
class Boundary extends Component<{ readonly children: ComponentChildren }, { readonly problem: Problem | null }> {
  override state: { readonly problem: Problem | null } = { problem: null };

  static override getDerivedStateFromError(error: unknown): { readonly problem: Problem } {
    return { problem: problemOf(error) };
  }

  override render() {
    const { problem } = this.state;
    return problem === null ? this.props.children : <Failed problem={problem} />;
  }
}
