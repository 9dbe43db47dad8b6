import { useEffect, useState } from "preact/hooks";
import { onReturn } from "../data/connection.ts";
import type { Problem } from "../data/problem.ts";
import { openBranches } from "./live-branches.ts";
import type { Branches, Drawing } from "./model/branches.ts";

export interface LoadedBranches {
  readonly branches: Branches;
  readonly drawing: Drawing;
  readonly problem: Problem | undefined;
  reload(): void;
  /** Loads older images. */
  loadOlder(): void;
}

/** The images of the account, kept up to date while the component is shown. */
export function useBranches(): LoadedBranches {
  const [, redraw] = useState(0);
  const [live] = useState(openBranches);
  const { branches, problem, reload, loadOlder } = live;
  useEffect(() => {
    const changed = () => redraw((count) => count + 1);
    live.onChange = changed;
    changed();
    return () => live.stop();
  }, [live]);
  useEffect(() => (problem?.isPassing === true ? onReturn(reload) : undefined), [problem, reload]);
  return { branches, drawing: branches.drawing, problem, reload, loadOlder };
}
