import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { readBranches } from "../../client/branches.ts";
import type { Change } from "../../client/types.ts";
import { api } from "../data/api.ts";
import { useChanges } from "../data/changes.ts";
import { onReturn } from "../data/connection.ts";
import { type Problem, problemOf } from "../data/problem.ts";
import { Branches, type Drawing } from "./model/branches.ts";
import type { ImageNode } from "./model/forest.ts";
import { type Row, rowOf } from "./model/rows.ts";

/** How long the first images wait for the stream of changes, in `milliseconds`: images that it tells of come after them. */
const STREAM_WAIT_MS = 250;

export interface Loaded {
  readonly branches: Branches;
  readonly drawing: Drawing;
  readonly problem: Problem | undefined;
  reload(): void;
  /** Loads images that are older than those that are there. */
  loadOlder(): void;
}

/** The images of the account, as they are and as they change. */
export function useBranches(): Loaded {
  const [, redraw] = useState(0);
  const branches = useMemo(() => new Branches(() => redraw((count) => count + 1)), []);
  const [problem, setProblem] = useState<Problem>();
  const loading = useRef<AbortController | null>(null);

  const load = useCallback(
    async (before: string | null) => {
      loading.current?.abort();
      const own = new AbortController();
      loading.current = own;
      if (before === null) branches.beginAnew();
      try {
        const part = before === null ? {} : { before };
        for await (const rows of readBranches(api, { ...part, signal: own.signal })) {
          branches.take(rows.map(rowOf).filter((row): row is Row => row !== null));
        }
        setProblem(undefined);
      } catch (error) {
        if (!own.signal.aborted) setProblem(problemOf(error));
      }
    },
    [branches],
  );
  const reload = useCallback(() => void load(null), [load]);
  const loadOlder = useCallback(() => void load(oldestOf(branches)), [load, branches]);

  useChanges((change) => {
    if (change.type === "resync") return reload();
    const row = rowOf(change as unknown as Change);
    if (row !== null) branches.take([row]);
  });
  useEffect(() => {
    const timer = setTimeout(() => {
      if (loading.current === null) reload();
    }, STREAM_WAIT_MS);
    return () => {
      clearTimeout(timer);
      loading.current?.abort();
    };
  }, [reload]);
  useEffect(() => (problem?.isPassing === true ? onReturn(reload) : undefined), [problem, reload]);
  return { branches, drawing: branches.drawing, problem, reload, loadOlder };
}

function oldestOf({ drawing }: Branches): string | null {
  let oldest: ImageNode | null = null;
  for (const image of drawing.forest.images.values()) {
    if (oldest === null || image.createdAt < oldest.createdAt) oldest = image;
  }
  return oldest?.id ?? null;
}
