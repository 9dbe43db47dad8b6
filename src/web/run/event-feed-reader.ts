import type { OperationEvent } from "../../client/types.ts";
import type { Problem } from "../data/problem.ts";
import { OutputBuffer } from "./output/output-buffer.ts";

/** Time after which the reader lets the browser do something else, in `milliseconds`. */
const TURN_MS = 5;
/** The newest events that are kept, those of output apart. */
export const KEPT_EVENTS_MAX = 1000;

/** What an operation does, as it is told. */
export interface EventFeed {
  /** output of the process that is watched */
  readonly output: OutputBuffer;
  /** everything but output, the oldest first: the newest ones, as many as are kept */
  readonly events: readonly OperationEvent[];
  /** number of events that were dropped before those */
  readonly droppedEventsCount: number;
  /** the machine of an instance, as it was told when it began; null: there is none yet */
  readonly machine: OperationEvent | null;
  /** number of all events by their types, dropped ones and those of output included */
  readonly counts: Readonly<Record<string, number>>;
  /** grows with every change */
  readonly version: number;
  /** number of events of all kinds so far, and of the characters of their output */
  readonly read: { readonly events: number; readonly characters: number };
  readonly isOver: boolean;
  readonly problem: Problem | undefined;
}

/** Number of events of some types so far: it grows also where the oldest events are dropped. */
export function countOfTypes({ counts }: Pick<EventFeed, "counts">, types: readonly OperationEvent["type"][]): number {
  return types.reduce((sum, type) => sum + (counts[type] ?? 0), 0);
}

/** What is shown before anything was told. */
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

/** Takes the events of an operation, and shows what they say at most once per frame. What it keeps is bounded. */
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
    this.#counts[type] = (this.#counts[type] ?? 0) + 1;
    if (type === "init") this.#machine = event;
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
