import { useEffect, useMemo, useState } from "preact/hooks";
import { answerOf } from "../../../client/client.ts";
import { pause } from "../../../client/pause.ts";
import type { Usage } from "../../../client/types.ts";
import { api } from "../../data/api.ts";
import { problemOf } from "../../data/problem.ts";
import { useStore } from "../../data/store.ts";
import { isPageVisible } from "../../data/visibility.ts";
import { Samples, sinceLast } from "./samples.ts";

/** Pause between two samples, in `milliseconds`. */
const AGAIN_MS = 1000;

export interface UsageSeries {
  readonly samples: Samples;
  /** grows with every sample */
  readonly version: number;
}

/**
 * The usage of an instance while it runs and the page is visible, one sample per second. Each has a request of its own: a stream
 * would hold one of the six connections that all windows of a browser share.
 * @param isRunning false: there are no samples
 */
export function useUsage(id: string, isRunning: boolean): UsageSeries {
  const samples = useMemo(() => new Samples(), [id]);
  const [version, setVersion] = useState(0);
  const isFollowed = useStore(isPageVisible) && isRunning;
  useEffect(() => {
    if (!isFollowed) return;
    const leaving = new AbortController();
    void follow(id, leaving.signal, (sample) => {
      samples.add(sinceLast(samples.latest, sample));
      setVersion((count) => count + 1);
    });
    return () => leaving.abort();
  }, [id, isFollowed]);
  return { samples, version };
}

/** Never rejects: the state of the instance comes from elsewhere. */
async function follow(id: string, signal: AbortSignal, take: (sample: Usage) => void): Promise<void> {
  const route = api.v1.instances({ uuid: encodeURIComponent(id) }).stats;
  while (!signal.aborted) {
    try {
      take(await answerOf(route.get({ query: { once: true }, fetch: { signal } })));
    } catch (error) {
      const { status } = problemOf(error);
      // Expected: the connection broke, or the instance is starting or ending.
      if (status === 401 || status === 403 || status === 404) return;
    }
    await pause(AGAIN_MS, signal).catch(() => undefined);
  }
}
