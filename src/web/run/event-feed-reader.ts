import { isLastEvent } from "../../client/operation-events.ts";
import type { OperationEvent } from "../../client/types.ts";
import type { Problem } from "../data/problem.ts";
import { OutputBuffer } from "./output/output-buffer.ts";

/** Longest time without a break for the browser, in `milliseconds`. */
const TURN_MS = 5;
/** Largest number of events that are kept, not counting output. */
export const KEPT_EVENTS_MAX = 1000;

/** The events of an operation so far. */
export interface EventFeed {
  /** output of the selected process */
  readonly output: OutputBuffer;
  /** the newest events without output, in order */
  readonly events: readonly OperationEvent[];
  /** number of older events that were dropped */
  readonly droppedEventsCount: number;
  /** the event that describes the machine of an instance; null: there is no machine yet */
  readonly machine: OperationEvent | null;
  /** number of all events by type, including dropped ones and output */
  readonly counts: Readonly<Record<string, number>>;
  /** grows with every change */
  readonly version: number;
  /** number of all events so far, and of characters of output */
  readonly read: { readonly events: number; readonly characters: number };
  readonly isOver: boolean;
  readonly problem: Problem | undefined;
}

/** Number of events of some types so far, including dropped ones. */
export function countOfTypes({ counts }: Pick<EventFeed, "counts">, types: readonly OperationEvent["type"][]): number {
  return types.reduce((sum, type) => sum + (counts[type] ?? 0), 0);
}

/** The feed before the first event. */
export function emptyEventFeed(): EventFeed {
  return {
    output: new OutputBuffer(),
    events: [],
    droppedEventsCount: 0,
    machine: null,
    counts: {},
    version: 0,
    isOver: false,
    problem: undefined,
    read: { events: 0, characters: 0 },
  };
}

/** Collects the events of an operation in bounded memory, and shows them at most once per frame. */
export class EventFeedReader {
  readonly #show: (feed: EventFeed) => void;
  readonly #output = new OutputBuffer();
  #events: OperationEvent[] = [];
  #droppedEventsCount = 0;
  #machine: OperationEvent | null = null;
  readonly #counts: Record<string, number> = {};
  #version = 0;
  #read = { events: 0, characters: 0 };
  #lastId: number | null = null;
  #isOver = false;
  #isLeft = false;
  #problem: Problem | undefined;
  #isDue = false;
  #turnFrom = performance.now();

  constructor(show: (feed: EventFeed) => void) {
    this.#show = show;
  }

  /** number of the last event; null: none */
  get lastId(): number | null {
    return this.#lastId;
  }

  /** true: there are no more events */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Stops the drawing. */
  leave(): void {
    this.#isLeft = true;
  }

  take(event: OperationEvent, spid: number): void {
    const { id, type, spid: of } = event;
    this.#lastId = id;
    this.#isOver = isLastEvent(event);
    this.#problem = undefined;
    this.#counts[type] = (this.#counts[type] ?? 0) + 1;
    if (type === "init") this.#machine = event;
    const isOutput = type === "stdout" || type === "stderr";
    this.#read.events += 1;
    if (isOutput) this.#read.characters += (event.data as { content: string }).content.length;
    // Events without a process are about the operation.
    if (of === spid && (isOutput || type === "truncated" || type === "size_cap")) this.#output.add(event);
    if (!isOutput) this.#note(event);
    this.#plan();
  }

  /** Lets the browser handle input and draw if this has run for {@link TURN_MS}. */
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
    // A progress event replaces the previous one of the same step.
    const last = this.#events.at(-1);
    const isSame = event.type === "progress" && last?.type === "progress" && last.data["step"] === event.data["step"];
    // The component has the present array, so it is replaced, not changed.
    const others = isSame ? this.#events.slice(0, -1) : this.#events;
    const extra = Math.max(0, others.length + 1 - KEPT_EVENTS_MAX);
    this.#droppedEventsCount += extra;
    this.#events = [...others.slice(extra), event];
  }

  #plan(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    // A hidden page gets no frames; it is drawn when it is visible again.
    requestAnimationFrame(() => this.#draw());
  }

  #draw(): void {
    this.#isDue = false;
    if (this.#isLeft) return;
    this.#version += 1;
    this.#show({
      output: this.#output,
      events: this.#events,
      droppedEventsCount: this.#droppedEventsCount,
      machine: this.#machine,
      counts: { ...this.#counts },
      version: this.#version,
      read: { ...this.#read },
      isOver: this.#isOver,
      problem: this.#problem,
    });
  }
}
