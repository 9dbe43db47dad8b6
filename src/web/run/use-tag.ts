import { useEffect, useState } from "preact/hooks";
import { answerOf } from "../../client/client.ts";
import type { Operation } from "../../client/types.ts";
import { api } from "../data/api.ts";
import { type Problem, problemOf } from "../data/problem.ts";
import { resultImage } from "../operations/outcome.ts";
import { forgetWish, isWished, wishTag } from "./tag-wishes.ts";

/** The tag that somebody wants for the image of a run. */
export interface TagWish {
  readonly tag: string;
  /** `asked`: the link asks for the tag, and nobody has asked for it on this page */
  readonly is: "asked" | "waiting" | "set" | "moot";
  readonly problem: Problem | undefined;
  /** makes the wish of the link one's own */
  readonly accept: () => void;
}

interface Known {
  /** null: the image may still get the tag */
  readonly is: "set" | "moot" | null;
  readonly problem?: Problem;
}

/**
 * Tags the image of a run when it ends: a request for a run has no tag, and so the link of the page keeps it. A link may come
 * from anybody, and a tag is taken from the image that has it: so only what was asked for in this browser is done unasked,
 * and once.
 * @param tag null: none is wanted
 * @returns null also before it is known what the image has
 */
export function useTagOfResult(operation: Operation, tag: string | null): TagWish | null {
  const [known, setKnown] = useState<Known>();
  const [accepted, setAccepted] = useState<string>();
  const { id } = operation;
  const isWanted = tag !== null && (accepted === tag || isWished(id, tag));
  const image = resultImage(operation);
  useEffect(() => {
    if (tag === null || image === undefined) return;
    const leaving = new AbortController();
    const { signal } = leaving;
    const route = api.v1.images({ uuid: encodeURIComponent(image) });
    const set = async (): Promise<Known> => {
      const { tag: current } = await answerOf(route.get({ fetch: { signal } }));
      // Whoever comes back to the link later must not take away what was set since.
      if (current !== undefined) return { is: current === tag ? "set" : "moot" };
      if (!isWanted) return { is: null };
      await answerOf(route.tag.patch({ tag }, { fetch: { signal } }));
      forgetWish(id, tag);
      return { is: "set" };
    };
    set().then(setKnown, (error: unknown) => {
      if (!signal.aborted) setKnown({ is: null, problem: problemOf(error) });
    });
    return () => leaving.abort();
  }, [tag, image, isWanted]);
  if (tag === null || (image !== undefined && known === undefined)) return null;
  const accept = () => {
    wishTag(id, tag);
    setAccepted(tag);
  };
  return { tag, accept, problem: known?.problem, is: known?.is ?? (isWanted ? "waiting" : "asked") };
}
