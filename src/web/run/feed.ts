import { useEffect, useMemo, useState } from "preact/hooks";
import { operationEvents } from "../../client/operation-events.ts";
import { COMMAND_SPID } from "../../client/processes.ts";
import type { OperationEvent } from "../../client/types.ts";
import { api } from "../data/api.ts";
import { onReturn } from "../data/connection.ts";
import { isAbort, type Problem, problemOf } from "../data/problem.ts";
import { isSeen } from "../data/seen.ts";
import { useStore } from "../data/store.ts";
import { OutputBuffer } from "./output/output-buffer.ts";

/** Time after which the reader lets the browser do something else, in `milliseconds`. */
const TURN_MS = 5;
/** The newest events that are kept, those of output apart. */
const KEPT_EVENTS_MAX = 1000;

/** What an operation does, as it is told. */
export interface Feed {
  /** output of the process that is watched */
  readonly output: OutputBuffer;
  /** everything but output, the oldest first */
  readonly events: readonly OperationEvent[];
  /** number of events that were dropped before those */
  readonly droppedEventsCount: number;
  /** grows with every change */
  readonly version: number;
  /** number of events of all kinds so far, and of the characters of their output */
  readonly read: { readonly events: number; readonly characters: number };
  readonly isOver: boolean;
  readonly problem: Problem | undefined;
}

export interface FeedOptions {
  /** the process whose output is kept; for the command, which it is where absent, the events of all processes are read */
  readonly spid?: number;
  /** true: also while nobody sees the page */
  readonly isKept?: boolean;
}

/**
 * Follows the events of an operation from its beginning to its end while the page is seen, over broken connections and
 * restarts of the appliance, without a gap or a double. The component is drawn anew at most once per frame.
 */
export function useFeed(id: string, { spid = COMMAND_SPID, isKept = false }: FeedOptions = {}): Feed {
  const [feed, setFeed] = useState<Feed>(emptyFeed);
  const reader = useMemo(() => new FeedReader(setFeed), [id, spid]);
  const isFollowed = useStore(isSeen) || isKept;
  useEffect(() => {
    setFeed(emptyFeed());
    return () => reader.leave();
  }, [reader]);
  useEffect(() => {
    if (!isFollowed || reader.isOver) return;
    const leaving = new AbortController();
    void follow(reader, { id, spid }, leaving.signal);
    return () => leaving.abort();
  }, [reader, isFollowed]);
  return feed;
}

function emptyFeed(): Feed {
  return {
    ...{ output: new OutputBuffer(), events: [], droppedEventsCount: 0, version: 0, isOver: false, problem: undefined },
    read: { events: 0, characters: 0 },
  };
}

/** Goes on where the reader is. Never rejects: what ends the reading early is told by the feed. */
async function follow(
  reader: FeedReader,
  { id, spid }: { readonly id: string; readonly spid: number },
  signal: AbortSignal,
): Promise<void> {
  for (;;) {
    try {
      const options = {
        ...{ follow: true, signal },
        ...(spid === COMMAND_SPID ? {} : { spid }),
        ...(reader.lastId === null ? {} : { after: reader.lastId }),
      };
      for await (const event of operationEvents(api, id, options)) {
        // Whoever follows next begins behind the last one that was taken.
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
      if (!problem.isPassing || !(await returned(signal))) return;
    }
  }
}

/** True when the appliance answers again; false when nobody waits any more. */
function returned(signal: AbortSignal): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const leave = onReturn(() => resolve(true));
  const given = () => resolve(false);
  signal.addEventListener("abort", given, { once: true });
  return promise.then((isBack) => {
    leave();
    signal.removeEventListener("abort", given);
    return isBack;
  });
}

class FeedReader {
  readonly #show: (feed: Feed) => void;
  readonly #output = new OutputBuffer();
  #events: OperationEvent[] = [];
  #droppedEventsCount = 0;
  #version = 0;
  #read = { events: 0, characters: 0 };
  #lastId: number | null = null;
  #isOver = false;
  #isLeft = false;
  #problem: Problem | undefined;
  #isDue = false;
  #turnFrom = performance.now();

  constructor(show: (feed: Feed) => void) {
    this.#show = show;
  }

  /** number of the last event; null: there was none */
  get lastId(): number | null {
    return this.#lastId;
  }

  /** true: there are no more events */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Shows nothing from now on. */
  leave(): void {
    this.#isLeft = true;
  }

  take(event: OperationEvent, spid: number): void {
    const { id, type, spid: of } = event;
    this.#lastId = id;
    this.#isOver = type === "completion";
    this.#problem = undefined;
    const isOutput = type === "stdout" || type === "stderr";
    this.#read.events += 1;
    if (isOutput) this.#read.characters += (event.data as { content: string }).content.length;
    // Whatever is not of a process is about the operation.
    if (of === spid && (isOutput || type === "truncated" || type === "size_cap")) this.#output.add(event);
    if (!isOutput) this.#note(event);
    this.#plan();
  }

  /** Gives the browser time for keys and drawing when this has taken long. */
  async turn(): Promise<void> {
    if (performance.now() - this.#turnFrom < TURN_MS) return;
    await new Promise<void>((resolve) => setTimeout(resolve));
    this.#turnFrom = performance.now();
  }

  end(problem: Problem | undefined): void {
    this.#isOver = problem === undefined;
    this.#problem = problem;
    this.#draw();
  }

  #note(event: OperationEvent): void {
    // Of the progress of one step only the latest is of interest.
    const last = this.#events.at(-1);
    const isSame = event.type === "progress" && last?.type === "progress" && last.data["step"] === event.data["step"];
    // The array was given away: it is replaced, not changed.
    const others = isSame ? this.#events.slice(0, -1) : this.#events;
    const extra = Math.max(0, others.length + 1 - KEPT_EVENTS_MAX);
    this.#droppedEventsCount += extra;
    this.#events = [...others.slice(extra), event];
  }

  #plan(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    // A page that nobody sees gets no frames; it is drawn when it is seen again.
    requestAnimationFrame(() => this.#draw());
  }

  #draw(): void {
    this.#isDue = false;
    if (this.#isLeft) return;
    this.#version += 1;
    this.#show({
      ...{ output: this.#output, events: this.#events, droppedEventsCount: this.#droppedEventsCount },
      ...{ version: this.#version, read: { ...this.#read }, isOver: this.#isOver, problem: this.#problem },
    });
  }
}
