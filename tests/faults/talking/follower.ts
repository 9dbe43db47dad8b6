import type { Appliance } from "../../support/appliance/appliance.ts";
import type { WireEvent } from "../../support/event-client.ts";
import type { StoryStep } from "../../support/sandboxes/story.ts";
import { TALKER, TalkerOutput, type TalkerPlace } from "../../support/talker/talker.ts";
import { pause, until } from "../../support/waiting.ts";

type Stream = "stdout" | "stderr";

/** Kept output of a process that is not a talker, in `characters`. */
const TEXT_CHARACTERS_MAX = 4096;
const PLACES_COUNT_MAX = 20_000;
const RETRY_MS = 50;
const CATCH_UP_MS_MAX = 120_000;

/** A process, as the events of its sandbox have it. */
export interface FollowedProcess {
  readonly spid: number;
  /** id of its `spawn`, or of the `fork` that it came with */
  readonly startedAt: number;
  readonly args: readonly string[];
  readonly talker: TalkerOutput | null;
  /** standard output of one that is not a talker */
  text: string;
  /** data of its `exit` */
  exit: { readonly exit_code: number; readonly signal: number | null } | null;
  /** id of its `exit` */
  exitAt: number | null;
  /** its machine is gone, and it ended without an `exit` */
  isLost: boolean;
  /** id of the event that says so */
  lostAt: number | null;
  /** where its outputs were after an event, the oldest first */
  readonly places: { readonly event: number; readonly stream: Stream; readonly place: TalkerPlace }[];
}

/**
 * Reads the events of a sandbox, by Last-Event-ID through all ends of the connection. Everything that cannot be is a problem: an
 * event that is missing or repeated, output that is not what follows, a process that ends twice or writes after its end.
 */
export class LogFollower {
  readonly #appliance: Appliance;
  readonly #id: string;
  readonly #find: (id: string) => LogFollower | null;
  readonly #problems: string[];
  readonly #stopping = new AbortController();
  /** hash of each event, by its id */
  readonly #hashes: number[] = [];
  readonly processes = new Map<number, FollowedProcess>();
  /** argument lists of processes that continue from a fork, and whose `spawn` has not come yet */
  readonly #continued = new Map<number, string>();
  readonly steps: StoryStep[] = [];
  /** number of events of each type */
  readonly counts: Record<string, number> = {};
  /** image of each `checkpoint` */
  readonly checkpoints = new Set<string>();
  cutsCount = 0;
  #done: Promise<void> = Promise.resolve();

  /** @param find the follower of the sandbox with that id, for what a fork continues */
  constructor(appliance: Appliance, id: string, find: (id: string) => LogFollower | null, problems: string[]) {
    this.#appliance = appliance;
    this.#id = id;
    this.#find = find;
    this.#problems = problems;
  }

  get lastId(): number {
    return this.#hashes.length - 1;
  }

  get state(): string | undefined {
    return this.steps.at(-1)?.to;
  }

  get isEnded(): boolean {
    return this.state === "ended";
  }

  /** The talkers that neither ended nor were lost. */
  get talkers(): FollowedProcess[] {
    return [...this.processes.values()].filter(
      ({ talker, exit, isLost }) => talker !== null && exit === null && !isLost,
    );
  }

  /** Number of lines of all talkers that were read and right. */
  get lines(): number {
    let lines = 0;
    for (const { talker, places } of this.processes.values()) {
      const first = places[0]?.event === -1 ? places : [];
      lines += (talker?.lines ?? 0) - first.slice(0, 2).reduce((sum, { place }) => sum + place.count, 0);
    }
    return lines;
  }

  start(): void {
    this.#done = this.#run();
  }

  /** Resolves when the log is read to its end, or is wrong. */
  get ended(): Promise<void> {
    return this.#done;
  }

  /** Waits for the event with this id. */
  async reached(event: number): Promise<void> {
    const what = `the follower of ${this.#id} reads event ${event}`;
    await until(what, () => this.lastId >= event, CATCH_UP_MS_MAX);
  }

  /** Ends the reading, and compares the whole log with what was read. */
  async finish(): Promise<void> {
    const whole = await this.#whole();
    await this.reached(whole.at(-1)?.id ?? -1).catch((error: Error) => this.#problem(error.message));
    this.#stopping.abort();
    await this.#done;
    let next = whole[0]?.type === "dropped" ? Number(whole[0].data.first) : 0;
    for (const event of whole) {
      if (event.type === "dropped") continue;
      if (event.id !== next) this.#problem(`the whole log has event ${event.id} in place of ${next}`);
      next = event.id + 1;
      const hash = this.#hashes[event.id];
      if (hash !== undefined && hash !== hashOf(event)) this.#problem(`event ${event.id} has changed`);
    }
    if (next < this.#hashes.length) this.#problem(`the log ends before event ${next}, which was read`);
  }

  /** Abandons the reading. */
  stop(): void {
    this.#stopping.abort();
  }

  async #whole(): Promise<WireEvent[]> {
    for (;;) {
      const response = await this.#appliance
        .fetch(`/sandboxes/${this.#id}/events`, { headers: { accept: "application/json" } })
        .catch(() => null);
      if (response?.status === 200) return (await response.json()) as WireEvent[];
      await pause("before the next try", RETRY_MS);
    }
  }

  async #run(): Promise<void> {
    while (!this.isEnded && !this.#stopping.signal.aborted) {
      try {
        await this.#follow();
      } catch (error) {
        // A wrong event is a problem once, and all that follow would be wrong, too.
        if (error instanceof LogProblem) return this.#problem(error.message);
      }
      this.cutsCount += 1;
      await pause("before the next try", RETRY_MS);
    }
  }

  async #follow(): Promise<void> {
    const headers: Record<string, string> = this.lastId < 0 ? {} : { "last-event-id": String(this.lastId) };
    const { signal } = this.#stopping;
    const path = `/sandboxes/${this.#id}/events?follow=true`;
    const response = await this.#appliance.fetch(path, { headers, signal });
    if (response.status !== 200) return;
    const decoder = new TextDecoder();
    let text = "";
    for await (const chunk of response.body as ReadableStream<Uint8Array>) {
      text += decoder.decode(chunk, { stream: true });
      const end = text.lastIndexOf("\n\n") + 2;
      if (end < 2) continue;
      for (const frame of text.slice(0, end).split("\n\n")) {
        const at = frame.indexOf("\ndata: ");
        if (at >= 0) await this.#event(JSON.parse(frame.slice(at + 7)) as WireEvent);
      }
      text = text.slice(end);
    }
  }

  async #event(event: WireEvent): Promise<void> {
    const { id, type } = event;
    this.counts[type] = (this.counts[type] ?? 0) + 1;
    if (type === "dropped") throw new LogProblem(`${event.data.dropped} events were dropped before they were read`);
    if (id !== this.lastId + 1) throw new LogProblem(`event ${id} follows ${this.lastId}`);
    if (type === "fork") await this.#fork(event);
    this.#hashes.push(hashOf(event));
    if (type === "spawn") this.#spawn(event);
    else if (type === "stdout" || type === "stderr") this.#output(event, type);
    else if (type === "exit") this.#exit(event);
    else if (type === "state") this.#state(event);
    else if (type === "checkpoint") this.checkpoints.add(String(event.data.image));
  }

  /** Takes over the processes of the parent, as they were at the fork. */
  async #fork({ id, data }: WireEvent): Promise<void> {
    const { parent, at_event } = data as { readonly parent: string; readonly at_event: number };
    const follower = this.#find(parent);
    if (follower === null) throw new LogProblem(`event ${id} is a fork of ${parent}, which has no follower`);
    await follower.reached(at_event);
    for (const process of follower.processesAt(at_event)) {
      const { spid, args, talker } = process;
      const at = (stream: Stream) => placeAt(process, stream, at_event);
      const places = { stdout: at("stdout"), stderr: at("stderr") };
      this.#continued.set(spid, args.join(" "));
      this.processes.set(spid, {
        ...{ spid, startedAt: id, args, text: process.text, exit: null, exitAt: null, isLost: false, lostAt: null },
        talker: talker === null ? null : new TalkerOutput(talker.name, places),
        places: [
          { event: -1, stream: "stdout", place: places.stdout },
          { event: -1, stream: "stderr", place: places.stderr },
        ],
      });
    }
  }

  /** The processes that ran after that event. */
  processesAt(event: number): FollowedProcess[] {
    const all = [...this.processes.values()];
    return all.filter(({ startedAt, exitAt, lostAt }) => startedAt <= event && (exitAt ?? lostAt ?? event + 1) > event);
  }

  #spawn({ id, spid = 0, data }: WireEvent): void {
    const { command, args } = data as { readonly command: string; readonly args: readonly string[] };
    const argv = [command, ...args];
    // The log of a fork has the starts of the processes that it came with, too.
    const continued = this.#continued.get(spid);
    if (this.#continued.delete(spid) && continued === argv.join(" ")) return;
    if (this.processes.has(spid)) throw new LogProblem(`process ${spid} starts again in event ${id}`);
    const at = argv.indexOf(TALKER);
    const talker = at < 0 ? null : new TalkerOutput(String(argv[at + 1]));
    this.processes.set(spid, {
      ...{
        spid,
        startedAt: id,
        args: argv,
        talker,
        text: "",
        exit: null,
        exitAt: null,
        isLost: false,
        lostAt: null,
        places: [],
      },
    });
  }

  #output({ id, spid = 0, data }: WireEvent, stream: Stream): void {
    const process = this.#running(id, spid, stream);
    const text = data.encoding === "base64" ? Buffer.from(data.content, "base64").toString("latin1") : data.content;
    const { talker, places } = process;
    if (talker === null) {
      if (stream === "stdout") process.text = (process.text + text).slice(0, TEXT_CHARACTERS_MAX);
      return;
    }
    const [problem] = talker.read(stream, text);
    if (problem !== undefined) throw new LogProblem(`event ${id} of process ${spid}: ${problem}`);
    places.push({ event: id, stream, place: talker.place(stream) });
    if (places.length > 2 * PLACES_COUNT_MAX) places.splice(2, places.length - PLACES_COUNT_MAX);
  }

  #exit({ id, spid = 0, data }: WireEvent): void {
    const process = this.#running(id, spid, "exit");
    process.exit = data;
    process.exitAt = id;
    const { talker } = process;
    if (talker === null || process.exit?.exit_code !== 0) return;
    const [problem] = talker.end();
    if (problem !== undefined) throw new LogProblem(`event ${id} of process ${spid}: ${problem}`);
  }

  #running(event: number, spid: number, what: string): FollowedProcess {
    const process = this.processes.get(spid);
    if (process === undefined) throw new LogProblem(`event ${event} is ${what} of process ${spid}, which has no start`);
    if (process.exit !== null || process.isLost) {
      throw new LogProblem(`event ${event} is ${what} of process ${spid}, which has ended`);
    }
    if (this.state === "paused") throw new LogProblem(`event ${event} is ${what} of process ${spid} during a pause`);
    return process;
  }

  #state({ id, data }: WireEvent): void {
    this.steps.push(data as StoryStep);
    const { from, to, memory } = data as StoryStep & { readonly memory?: boolean };
    const isKept = memory === true || (to === "running" && from !== "resuming");
    if (["running", "paused", "failed", "ended"].includes(to) && !isKept) this.#lose(id);
  }

  /** The machine is gone, and the processes with it. */
  #lose(event: number): void {
    for (const process of this.processes.values()) {
      if (process.exit !== null || process.isLost) continue;
      process.isLost = true;
      process.lostAt = event;
    }
  }

  #problem(text: string): void {
    this.#problems.push(`sandbox ${this.#id}: ${text}`);
  }
}

/** An event that a log must not have. */
class LogProblem extends Error {}

function placeAt({ places }: FollowedProcess, stream: Stream, event: number): TalkerPlace {
  const last = places.findLast((one) => one.stream === stream && one.event <= event);
  return last?.place ?? { count: 0, rest: "", generation: 0 };
}

function hashOf(event: WireEvent): number {
  return Bun.hash.crc32(JSON.stringify(event));
}
