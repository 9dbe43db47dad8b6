import { useEffect, useState } from "preact/hooks";
import { answerOf } from "../../client/client.ts";
import type { Operation } from "../../client/types.ts";
import { api } from "../data/api.ts";
import { type Problem, problemOf } from "../data/problem.ts";
import { resultImage } from "./words.ts";

/** The tag that somebody wants for the image of a run. */
export interface TagWish {
  readonly tag: string;
  readonly is: "waiting" | "set" | "moot";
  readonly problem: Problem | undefined;
}

/**
 * Tags the image of a run when it ends: a request for a run has no tag, and so the link of the page keeps it.
 * @param tag null: none is wanted
 */
export function useTagOfResult(operation: Operation, tag: string | null): TagWish | null {
  const [state, setState] = useState<Omit<TagWish, "tag">>({ is: "waiting", problem: undefined });
  const image = resultImage(operation);
  useEffect(() => {
    if (tag === null || image === undefined) return;
    const leaving = new AbortController();
    const { signal } = leaving;
    const route = api.v1.images({ uuid: encodeURIComponent(image) });
    const set = async () => {
      const { tag: current } = await answerOf(route.get({ fetch: { signal } }));
      // Whoever comes back to the link later must not take away what was set since.
      if (current === undefined) await answerOf(route.tag.patch({ tag }, { fetch: { signal } }));
      return current === undefined || current === tag;
    };
    set().then(
      (isSet) => setState({ is: isSet ? "set" : "moot", problem: undefined }),
      (error: unknown) => {
        if (!signal.aborted) setState({ is: "waiting", problem: problemOf(error) });
      },
    );
    return () => leaving.abort();
  }, [tag, image]);
  return tag === null ? null : { tag, ...state };
}
