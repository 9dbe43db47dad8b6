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

/** Loads the chunk of a view, so that it is there when it is gone to. Failures are told when it is shown. */
export async function preload(place: Place): Promise<ViewModule | null> {
  try {
    const module = await place.load();
    loaded.set(place.name, module.View);
    return module;
  } catch {
    // TypeError: the chunk does not come; whoever goes there is told.
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
 * An appliance that was upgraded has chunks of other names, and names them in a new index page: the page is loaded once.
 * @returns false when it has been, without success
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

/** Keeps the frame when a view fails. */
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
