import { useEffect, useMemo, useState } from "preact/hooks";
import { eventsBelow } from "../../client/operation-events.ts";
import { COMMAND_SPID } from "../../client/processes.ts";
import { api } from "../data/api.ts";
import { untilReturn } from "../data/connection.ts";
import { isAbort, problemOf } from "../data/problem.ts";
import { useStore } from "../data/store.ts";
import { isPageVisible } from "../data/visibility.ts";
import { type EventFeed, EventFeedReader, emptyEventFeed } from "./event-feed-reader.ts";

export interface EventFeedOptions {
  /** the process whose output is kept, by default the command; for the command, the events of all processes are read */
  readonly spid?: number;
}

/**
 * Follows the events of what is at a path, an operation or a sandbox, from the first to the last while the page is visible, across lost connections and
 * restarts of the appliance, each event exactly once. Redraws the component at most once per frame.
 */
export function useEventFeed(path: string, { spid = COMMAND_SPID }: EventFeedOptions = {}): EventFeed {
  const [feed, setFeed] = useState<EventFeed>(emptyEventFeed);
  const reader = useMemo(() => new EventFeedReader(setFeed), [path, spid]);
  const isFollowed = useStore(isPageVisible);
  useEffect(() => {
    setFeed(emptyEventFeed());
    return () => reader.leave();
  }, [reader]);
  useEffect(() => {
    if (!isFollowed || reader.isOver) return;
    const leaving = new AbortController();
    void follow(reader, { path, spid }, leaving.signal);
    return () => leaving.abort();
  }, [reader, isFollowed]);
  return feed;
}

/** Continues after the last event of the reader. Never rejects: the feed has the problem. */
async function follow(
  reader: EventFeedReader,
  { path, spid }: { readonly path: string; readonly spid: number },
  signal: AbortSignal,
): Promise<void> {
  for (;;) {
    try {
      const options = {
        ...{ follow: true, signal },
        ...(spid === COMMAND_SPID ? {} : { spid }),
        ...(reader.lastId === null ? {} : { after: reader.lastId }),
      };
      for await (const event of eventsBelow(api, path, options)) {
        // This event is not lost: the next call continues after the last event of the reader.
        if (signal.aborted) return;
        reader.take(event, spid);
        await reader.turn();
      }
      reader.end(undefined);
      return;
    } catch (error) {
      if (signal.aborted || isAbort(error)) return;
      const problem = problemOf(error);
      reader.end(problem);
      if (!problem.isPassing) return;
      await untilReturn(signal);
      if (signal.aborted) return;
    }
  }
}
